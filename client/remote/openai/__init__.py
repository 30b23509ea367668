"""The client of servers of OpenAI's protocol, whose answers are streams of events."""
