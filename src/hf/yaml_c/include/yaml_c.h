// yaml_c: a C interface that turns YAML into JSON. No call aborts or throws: each returns 0, or 1
// with a message in *error.
#ifndef LONGSHORE_YAML_C_H_
#define LONGSHORE_YAML_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes that the caller owns.
typedef struct {
  const uint8_t* data;
  size_t size;
} yamlc_slice;

// Bytes owned by the receiver, without a terminating zero.
typedef struct {
  uint8_t* data;
  size_t size;
} yamlc_string;

// The limits of one text. They count what aliases and merge keys repeat each time.
typedef struct {
  size_t bytes;  // of the text, and of all keys and strings together
  size_t depth;  // of nested lists and mappings
  size_t values;
} yamlc_limits;

void yamlc_string_free(yamlc_string text);

// Writes the text's one document as JSON. *error begins with "line N, column N: ".
int yamlc_to_json(yamlc_slice text, yamlc_limits limits, yamlc_string* json, yamlc_string* error);

#ifdef __cplusplus
}
#endif

#endif  // LONGSHORE_YAML_C_H_
