//! Converts the library's errors to error texts for the user.

use parquet::errors::ParquetError;

/// Omits the library's own prefix.
pub fn words(error: &ParquetError) -> String {
    match error {
        ParquetError::General(text) => text.clone(),
        other => other.to_string(),
    }
}
