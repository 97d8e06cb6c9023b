"""Changes of trained models: tables that grow or are of another kind, features that come and go.

kinds          tables that were of another kind when a state was stored
refit          a state of one feature set, fitted to a model of another
warm           a student that starts with another one's weights
"""
