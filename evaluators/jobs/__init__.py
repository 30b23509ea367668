"""Jobs: a frozen request in, evaluations out. Jobs print nothing, and every front end uses them."""
