"""The synthetic ads stream, with known truth.

stream        impressions and feedback in the order they arrive
world         users, ads, tastes and the probabilities of clicks and conversions
world_config  the settings of the world
population    users and ads come and go
patterns      what decides clicks beyond the match of a user and an ad
recent        what users clicked last, as far as a log knew it by then
choices       requests for which ads compete, and which of them the log shows
delays        time from impression to click and from click to conversion
malformed     broken records
truth         the true probabilities, stored and looked up
"""
