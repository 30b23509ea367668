"""What runs jobs: in fresh processes, under supervision, with what they are given."""
