"""The precision of figures: intervals of serial times, measurement length, and process groups."""
