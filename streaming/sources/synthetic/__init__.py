"""The synthetic ads stream, with known truth.

stream        impressions and feedback in the order they arrive, and which of several candidates was shown
world         users, ads, tastes and the probabilities of clicks and conversions
world_config  the settings of the world
population    users and ads come and go
recent        what users clicked last, as far as a log knew it by then
delays        time from impression to click and from click to conversion
malformed     broken records
truth         the true probabilities, stored and looked up
"""
