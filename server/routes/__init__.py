"""The HTTP routes: each reads its request, asks the scheduler, and hands the events to a renderer."""
