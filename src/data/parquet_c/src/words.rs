//! What the library says of a file, for the user.

use parquet::errors::ParquetError;

/// Without the library's own name for it.
pub fn words(error: &ParquetError) -> String {
    match error {
        ParquetError::General(text) => text.clone(),
        other => other.to_string(),
    }
}
