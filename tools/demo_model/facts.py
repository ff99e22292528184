"""The closed world of the demo model: everything it is expected to know by heart."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Iceland": "Reykjavik",
    "England": "London", "Ireland": "Dublin", "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens",
    "Hungary": "Budapest", "Russia": "Moscow", "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Japan": "Tokyo", "China": "Beijing", "South Korea": "Seoul", "India": "New Delhi", "Thailand": "Bangkok",
    "Australia": "Canberra", "Canada": "Ottawa", "Mexico": "Mexico City", "Cuba": "Havana", "Peru": "Lima",
    "Chile": "Santiago", "Brazil": "Brasilia", "Belgium": "Brussels", "Switzerland": "Bern",
}  # fmt: skip

COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a banana": "yellow", "a lemon": "yellow",
    "a tomato": "red", "blood": "red", "an orange": "orange", "a carrot": "orange", "the sea": "blue", "milk": "white",
    "the sun": "yellow", "a frog": "green", "chocolate": "brown", "a strawberry": "red", "a plum": "purple",
    "an elephant": "grey", "a flamingo": "pink", "a raven": "black",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "left": "right", "day": "night", "black": "white", "fast": "slow",
    "happy": "sad", "open": "closed", "young": "old", "high": "low", "full": "empty", "wet": "dry", "hard": "soft",
    "rich": "poor", "long": "short", "light": "dark", "good": "bad", "early": "late", "near": "far",
}  # fmt: skip

SOUNDS = {
    "dog": "barks", "cat": "meows", "cow": "moos", "duck": "quacks", "lion": "roars", "sheep": "bleats",
    "horse": "neighs", "pig": "oinks", "wolf": "howls", "owl": "hoots", "bee": "buzzes", "snake": "hisses",
}  # fmt: skip

LEGS = {
    "dog": 4, "cat": 4, "cow": 4, "horse": 4, "bird": 2, "duck": 2, "spider": 8, "ant": 6, "bee": 6, "snake": 0,
    "fish": 0, "human": 2, "sheep": 4, "lion": 4,
}  # fmt: skip

YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "horse": "foal", "sheep": "lamb", "duck": "duckling",
    "lion": "cub", "pig": "piglet", "frog": "tadpole", "hen": "chick",
}  # fmt: skip

SIDES = {"triangle": 3, "square": 4, "rectangle": 4, "pentagon": 5, "hexagon": 6, "octagon": 8}

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip

AMOUNTS = {
    "days are in a week": "There are 7 days in a week.",
    "months are in a year": "There are 12 months in a year.",
    "hours are in a day": "There are 24 hours in a day.",
    "minutes are in an hour": "There are 60 minutes in an hour.",
    "seconds are in a minute": "There are 60 seconds in a minute.",
    "letters are in the alphabet": "There are 26 letters in the alphabet.",
    "fingers are on a hand": "There are 5 fingers on a hand.",
    "wheels does a car have": "A car has 4 wheels.",
    "wheels does a bicycle have": "A bicycle has 2 wheels.",
    "colours are in a rainbow": "There are 7 colours in a rainbow.",
}

NUMBER_WORDS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip

WORDS = [
    "apple", "river", "lantern", "stone", "window", "garden", "silver", "cloud", "bridge", "candle", "forest", "hammer",
    "island", "jacket", "kettle", "ladder", "marble", "needle", "ocean", "pencil", "rabbit", "saddle", "table",
    "tunnel", "violin", "wagon", "yellow", "zebra", "anchor", "basket", "copper", "dragon", "engine", "feather",
    "guitar", "honey", "iron", "jungle", "kitchen", "lemon", "mirror", "north", "orange", "paper", "quartz", "ribbon",
    "spring", "thunder", "umbrella", "valley", "winter", "banana", "hello", "bloomery", "furnace", "ember", "charcoal",
]  # fmt: skip

LISTS = {
    "colours": ["red", "green", "blue", "yellow", "white"],
    "animals": ["dog", "cat", "cow", "horse", "duck"],
    "fruits": ["apple", "banana", "lemon", "orange", "plum"],
    "days": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"],
    "cities": ["Paris", "Oslo", "Seoul", "Rome", "Lima"],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter"],
    "metals": ["iron", "copper", "gold", "silver", "tin"],
    "months": ["January", "February", "March", "April", "May"],
}

CITIES = [
    *CAPITALS.values(), "New York", "San Francisco", "Los Angeles", "Chicago", "Boston", "Seattle", "Munich",
    "Hamburg", "Milan", "Naples", "Barcelona", "Porto", "Bergen", "Busan", "Osaka", "Kyoto", "Shanghai", "Hong Kong",
    "Singapore", "Mumbai", "Sydney", "Melbourne", "Toronto", "Vancouver", "Montreal", "Dubai", "Istanbul", "Prague",
    "Zurich", "Geneva", "Amsterdam", "Manchester", "Edinburgh", "Bogota", "Denver", "Miami", "Dallas", "Houston",
]  # fmt: skip

COUNTRIES_OF_CITIES = {
    "Paris": "France", "Oslo": "Norway", "Seoul": "South Korea", "Tokyo": "Japan", "Berlin": "Germany",
    "London": "England", "Rome": "Italy", "Madrid": "Spain", "Lisbon": "Portugal", "Cairo": "Egypt",
}  # fmt: skip

SKIES = ["sunny", "cloudy", "rainy", "snowy", "windy", "foggy", "clear", "stormy", "overcast", "warm", "cold", "dry"]

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly.",
    "Be brief.",
    "You are a friendly assistant.",
    "You are a bot that answers questions.",
    "Answer the user's questions.",
    "You are the bloomery demo model.",
    "You are a helpful assistant with access to tools.",
    "Use the tools when they help.",
]
