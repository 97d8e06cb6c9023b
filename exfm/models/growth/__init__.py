"""Changes of trained models: tables that grow, features that come and go.

refit          a state of one feature set, fitted to a model of another
warm           a student that starts with another one's weights
"""
