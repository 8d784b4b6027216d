"""Tables of your own: from frames or files of several clients to features and labels.

files          reads CSV and parquet files
parquet        parquet files, whose memory is counted before they are read
labels         the target: a column or an expression such as `delay>15`; labels to classes
columns        the schema: which columns are numbers, which are categories, which are left out
preprocessing  fills, scales and encodes columns, with numbers fitted by scikit-learn
problems       what a reader of the results should know about the data
frames         all of it: frames by client in, `Pools` out
"""
