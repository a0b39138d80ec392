"""Read and write data sets and predictions as CSR; every write is atomic."""

from xmlpreck.data.dataset import Dataset, Documents, TopK, build_csr
from xmlpreck.data.formats.column_choice import Columns
from xmlpreck.data.formats.companions import drop_filtered, find_filter, read_filter, read_inverse_propensities
from xmlpreck.data.formats.prediction_output import prediction_kind, write_prediction_blocks, write_predictions
from xmlpreck.data.formats.predictions import open_predictions, read_predictions
from xmlpreck.data.formats.recognition import (
    DOCUMENT_FORMATS,
    FORMATS,
    NUMERIC_FORMATS,
    READ_NUMBERS,
    WRITTEN_DOCUMENTS,
    find_source,
    is_fulltext_folder,
    recognise,
)
from xmlpreck.data.formats.repository import read_repository_text, write_repository_text
from xmlpreck.data.formats.splits import (
    document_chunks,
    has_split,
    open_documents,
    read_chunks,
    read_documents,
    read_split,
    sizes,
    write_split,
)
from xmlpreck.files import FormatError

__all__ = [
    "DOCUMENT_FORMATS",
    "FORMATS",
    "NUMERIC_FORMATS",
    "READ_NUMBERS",
    "WRITTEN_DOCUMENTS",
    "Columns",
    "Dataset",
    "Documents",
    "FormatError",
    "TopK",
    "build_csr",
    "document_chunks",
    "drop_filtered",
    "find_filter",
    "find_source",
    "has_split",
    "is_fulltext_folder",
    "open_documents",
    "open_predictions",
    "prediction_kind",
    "read_chunks",
    "read_documents",
    "read_filter",
    "read_inverse_propensities",
    "read_predictions",
    "read_repository_text",
    "read_split",
    "recognise",
    "sizes",
    "write_prediction_blocks",
    "write_predictions",
    "write_repository_text",
    "write_split",
]
