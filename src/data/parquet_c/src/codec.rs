//! Decompresses pages, never to more bytes than the page's header says.

use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};
use std::io::Read;

fn wrong(codec: &str, what: impl std::fmt::Display) -> ParquetError {
    ParquetError::General(format!("a page's {codec} data is wrong: {what}"))
}

fn read_exactly(codec: &str, source: impl Read, bytes: usize, into: &mut Vec<u8>) -> Result<()> {
    let before = into.len();
    source
        .take(bytes as u64 + 1)
        .read_to_end(into)
        .map_err(|e| wrong(codec, e))?;
    if into.len() - before != bytes {
        return Err(wrong(codec, "it is not as long as the page says"));
    }
    Ok(())
}

/// Decompresses `packed` into exactly `bytes` bytes and appends them to `into`.
pub fn decompress(
    compression: Compression,
    packed: &[u8],
    bytes: usize,
    into: &mut Vec<u8>,
) -> Result<()> {
    let before = into.len();
    match compression {
        Compression::SNAPPY => {
            let said = snap::raw::decompress_len(packed).map_err(|e| wrong("snappy", e))?;
            if said != bytes {
                return Err(wrong("snappy", "it is not as long as the page says"));
            }
            into.resize(before + bytes, 0);
            snap::raw::Decoder::new()
                .decompress(packed, &mut into[before..])
                .map_err(|e| wrong("snappy", e))?;
            Ok(())
        }
        Compression::GZIP(_) => read_exactly(
            "gzip",
            flate2::read::MultiGzDecoder::new(packed),
            bytes,
            into,
        ),
        Compression::ZSTD(_) => {
            let stream =
                ruzstd::decoding::StreamingDecoder::new(packed).map_err(|e| wrong("zstd", e))?;
            read_exactly("zstd", stream, bytes, into)
        }
        Compression::LZ4_RAW => {
            into.resize(before + bytes, 0);
            let got = lz4_flex::block::decompress_into(packed, &mut into[before..])
                .map_err(|e| wrong("lz4", e))?;
            if got != bytes {
                return Err(wrong("lz4", "it is not as long as the page says"));
            }
            Ok(())
        }
        other => Err(ParquetError::General(format!(
            "pages compressed with {other} are not read; write the file with zstd or snappy: \
             pyarrow.parquet.write_table(pyarrow.parquet.read_table(FILE), NEW, \
             compression=\"zstd\")"
        ))),
    }
}
