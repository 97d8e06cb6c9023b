"""Public data sets in the files in which they are published, each made one Parquet file in order of event time.

published    what a data set is: its files, its rows in SQL, its roles and labels
display_ads  Criteo (Kaggle, Terabyte), Avazu, KDD Cup 2012
shops        TalkingData, TaobaoAd
media        MovieLens, Yambda
writing      the rows of a data set as a Parquet file, in constant memory
"""
