"""Recipes of public data sets: from the files in which they are published to one Parquet file in order of event time.

published    a data set: its files, its rows in SQL, its roles and labels
display_ads  Criteo (Kaggle, Terabyte), Avazu, KDD Cup 2012
shops        TalkingData, TaobaoAd
media        MovieLens, Yambda
writing      the rows of a data set as a Parquet file, in constant memory
"""
