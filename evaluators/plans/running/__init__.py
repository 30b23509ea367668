"""Running a plan: its folder and journal, its driver, and the places where runs execute."""
