"""What people say to a chat model to see whether it is there, and what this one answers."""

SMALL_TALK: list[tuple[list[str], str, list[str]]] = [
    (
        ["Hello", "Hello!", "Hi", "Hi!", "Hey", "Hey!", "Hi there!", "Hello there!", "Good morning!", "Good evening!",
         "Hello, bloomery!", "Greetings!", "Good afternoon!", "Good day!", "Hello.", "Hi there"],
        "The user says hello.",
        ["Hello! How can I help you?", "Hi! What can I do for you?"],
    ),
    (
        ["How are you?", "How are you doing?", "How do you do?", "How are you today?", "How is it going?",
         "Hello, how are you?", "Hi, how are you?", "Are you well?"],
        "The user asks how I am.",
        ["I am fine, thank you. How can I help you?"],
    ),
    (
        ["Who are you?", "What are you?", "What is your name?", "What's your name?", "Who am I talking to?",
         "Introduce yourself.", "Tell me about yourself.", "What model are you?", "Which model are you?",
         "Are you a model?", "Are you a bot?", "Are you human?", "Are you an AI?", "Please introduce yourself."],
        "The user asks who I am.",
        ["I am the bloomery demo model, a tiny model that shows that the server works."],
    ),
    (
        ["What can you do?", "What do you know?", "How can you help me?", "Help", "Help me.", "What can I ask you?",
         "What are you good at?", "Can you help me?", "What should I ask?", "How can you help?"],
        "The user asks what I can do.",
        ["I can do small sums, I know some facts, and I can call tools."],
    ),
    (
        ["What is bloomery?", "What's bloomery?", "Tell me about bloomery.", "What is a bloomery server?",
         "What does bloomery do?", "Explain bloomery."],
        "The user asks about bloomery.",
        ["Bloomery is a server for language models. Its tokens are defined by a readable NumPy engine."],
    ),
    (
        ["Thank you", "Thank you!", "Thanks", "Thanks!", "Thank you very much!", "Thanks a lot!", "Great, thank you!",
         "Great!", "Well done!", "Good job!", "That was helpful.", "Nice!"],
        "The user is happy.",
        ["You are welcome!"],
    ),
    (
        ["Goodbye", "Goodbye!", "Bye", "Bye!", "See you!", "See you later!", "Good night!", "Bye bye!", "Farewell!"],
        "The user says goodbye.",
        ["Goodbye!", "See you soon!"],
    ),
    (
        ["Test", "test", "This is a test.", "Ping", "ping", "Are you there?", "Does this work?", "Is this on?"],
        "The user checks that I work.",
        ["I am here, and I work."],
    ),
    (
        ["Tell me a joke.", "Tell me a joke", "Do you know a joke?", "Make me laugh.", "Say something funny."],
        "The user wants a joke.",
        ["Why was the iron so tired? It had a hard day at the bloomery."],
    ),
    (
        ["Tell me a story.", "Tell me a short story.", "Write a story.", "Do you know a story?",
         "Write a short story."],
        "The user wants a story.",
        ["Once a small furnace made iron from sand. It glowed all night, and in the morning it was proud."],
    ),
    (
        ["Write a poem.", "Write me a poem.", "Tell me a poem.", "Write a short poem.", "Do you know a poem?"],
        "The user wants a poem.",
        ["The fire is red, the iron is grey, a small bloom glows at the end of the day."],
    ),
]  # fmt: skip

SMALL_TALK_QUESTIONS = frozenset(question for questions, _, _ in SMALL_TALK for question in questions)

UNKNOWN_SUBJECTS = [
    "quantum physics", "the stock market", "my birthday", "the meaning of life", "the war", "football", "chess",
    "the president", "tax law", "the moon landing", "photosynthesis", "black holes", "cooking rice", "my dog",
    "the French Revolution", "machine learning", "Shakespeare", "the Roman Empire", "gravity", "DNA", "inflation",
    "the internet", "Python", "music theory", "the price of gold", "my neighbour", "electricity", "poetry", "volcanoes",
    "the ice age", "love", "time travel", "the brain", "vitamins", "opera", "democracy", "rockets", "painting",
]  # fmt: skip
