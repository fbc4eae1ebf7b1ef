// parquet_c: the C interface of the Rust crate beside it: rows of a Parquet file as lines of JSON.
// No call aborts or throws: each returns 0, or 1 and a message in *error. A reader has one owner.
#ifndef LONGSHORE_PARQUET_C_H_
#define LONGSHORE_PARQUET_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct parqc_reader parqc_reader;

// Owned bytes, not ended by a zero.
typedef struct {
  uint8_t* data;
  size_t size;
} parqc_string;

void parqc_string_free(parqc_string text);

// Reads the footer. `fd` can be read at any place; the reader owns it, also where this fails.
int parqc_open(int fd, parqc_reader** reader, parqc_string* error);
void parqc_free(parqc_reader* reader);

// The next rows, a line of JSON each, about `wanted` bytes of them; none at the end. A member that
// is null is left out. `position` becomes the bytes of the file that the rows so far take.
int parqc_next(parqc_reader* reader, size_t wanted, parqc_string* lines, uint64_t* position,
               parqc_string* error);

#ifdef __cplusplus
}
#endif

#endif  // LONGSHORE_PARQUET_C_H_
