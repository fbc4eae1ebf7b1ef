//! Checks a page's level and length streams before decoding: the length of the longest row and the
//! number of values. Decoders allocate memory for both without a check.

use parquet::errors::{ParquetError, Result};

fn damaged() -> ParquetError {
    ParquetError::General("a page is damaged: its levels or lengths end too early".into())
}

fn varint(bytes: &[u8], at: &mut usize) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at).ok_or_else(damaged)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(damaged())
}

/// Returns the length of the longest row among `values` repetition levels (RLE mixed with bit
/// packing). `open` is the length of the row that continues from the previous page, then that of
/// the one that may continue on the next page. Stops at the first row longer than `limit`.
pub fn longest_row(
    bytes: &[u8],
    bits: usize,
    values: usize,
    open: &mut usize,
    limit: usize,
) -> Result<usize> {
    let mut at = 0;
    let mut seen = 0;
    let mut longest = *open;
    while seen < values && longest <= limit {
        let head = varint(bytes, &mut at)?;
        let count = head >> 1;
        if head & 1 == 0 {
            let bytes_of_value = bits.div_ceil(8);
            let value = bytes.get(at..at + bytes_of_value).ok_or_else(damaged)?;
            at += bytes_of_value;
            let run = count.min((values - seen) as u64) as usize;
            if run == 0 {
                return Err(damaged());
            }
            let begins = value.iter().all(|byte| *byte == 0);
            *open = if begins { 1 } else { *open + run };
            seen += run;
            longest = longest.max(*open);
            continue;
        }
        let packed = usize::try_from(count)
            .ok()
            .and_then(|groups| groups.checked_mul(bits))
            .ok_or_else(damaged)?;
        // Writers may omit bytes of the last group that hold no value.
        let here = &bytes[at.min(bytes.len())..at.saturating_add(packed).min(bytes.len())];
        at = at.saturating_add(packed);
        let run = (here.len() * 8 / bits).min(values - seen);
        if run == 0 {
            return Err(damaged());
        }
        for index in 0..run {
            let begins = (0..bits).all(|bit| {
                let place = index * bits + bit;
                here[place / 8] >> (place % 8) & 1 == 0
            });
            *open = if begins { 1 } else { *open + 1 };
            longest = longest.max(*open);
        }
        seen += run;
    }
    Ok(longest)
}

/// Checks a stream of DELTA_BINARY_PACKED integers, at most `values` of them; returns its end.
pub fn check_delta(bytes: &[u8], values: usize) -> Result<usize> {
    let mut at = 0;
    let block = varint(bytes, &mut at)?;
    let parts = varint(bytes, &mut at)?;
    let total = varint(bytes, &mut at)?;
    varint(bytes, &mut at)?; // the first value
    let plausible = parts > 0
        && parts <= 1024
        && block <= 1 << 20
        && block % 128 == 0
        && (block / parts) % 32 == 0
        && block >= parts * 32
        && total <= values as u64;
    if !plausible {
        return Err(ParquetError::General(
            "a page is damaged: its lengths are not as many as its values".into(),
        ));
    }
    let in_part = (block / parts) as usize;
    let mut left = (total as usize).saturating_sub(1);
    while left > 0 {
        varint(bytes, &mut at)?; // the least delta
        let widths = bytes.get(at..at + parts as usize).ok_or_else(damaged)?;
        at += parts as usize;
        for width in widths {
            if left == 0 {
                break;
            }
            if *width > 64 {
                return Err(damaged());
            }
            at += in_part * usize::from(*width) / 8;
            left = left.saturating_sub(in_part);
        }
    }
    // The last part may be shorter.
    Ok(at.min(bytes.len()))
}
