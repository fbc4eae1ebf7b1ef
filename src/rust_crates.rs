//! The static library's C functions: those of each crate.

pub use parquet_c;
pub use tokenizers_c;
pub use yaml_c;
