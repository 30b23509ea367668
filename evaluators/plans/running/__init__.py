"""The running of a plan: its folder and journal, its driver, and the places where runs run."""
