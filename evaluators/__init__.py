"""What is asked of an agent and what is made of the answers: datasets, evaluations, the store and reports."""
