"""Jobs: a frozen request in, evaluations out. They print nothing; every front end calls them."""
