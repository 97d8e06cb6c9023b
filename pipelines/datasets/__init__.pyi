from .published import Dataset
from .writing import DATASETS, dataset, write_dataset

__all__ = ["DATASETS", "Dataset", "dataset", "write_dataset"]
