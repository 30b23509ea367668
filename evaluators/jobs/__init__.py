"""Jobs: a frozen request in, evaluations out. Jobs print nothing; every front end calls them."""
