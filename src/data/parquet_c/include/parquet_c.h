// parquet_c: a C interface to rows of a Parquet file as lines of JSON. No call aborts or throws:
// each returns 0, or 1 with a message in *error. A reader has one owner.
#ifndef LONGSHORE_PARQUET_C_H_
#define LONGSHORE_PARQUET_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct parqc_reader parqc_reader;

// Bytes owned by the receiver, without a terminating zero.
typedef struct {
  uint8_t* data;
  size_t size;
} parqc_string;

void parqc_string_free(parqc_string text);

// Reads the footer. `fd` must be seekable; the reader owns it, also if this call fails.
int parqc_open(int fd, parqc_reader** reader, parqc_string* error);
void parqc_free(parqc_reader* reader);

// Returns the next rows, one line of JSON each, about `wanted` bytes in total; none at the end.
// Null members are left out. *position is set to the file's bytes that the rows so far use.
int parqc_next(parqc_reader* reader, size_t wanted, parqc_string* lines, uint64_t* position,
               parqc_string* error);

#ifdef __cplusplus
}
#endif

#endif  // LONGSHORE_PARQUET_C_H_
