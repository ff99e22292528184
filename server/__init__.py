"""The Falcon application, run by waitress: settings, routes, chat, scheduler."""
