"""The options of ``agent serve``, and the publication of the agent."""
