// Conversions of strings for the C interface of the tokenizers crate. Internal to src/text. Plain
// functions, any thread.
#pragma once

#include <tokenizers_c.h>

#include <string>
#include <string_view>

namespace longshore {

inline tokc_slice slice_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Copies the string and frees the original.
inline std::string take(tokc_string text) {
  std::string copy(reinterpret_cast<const char*>(text.data), text.size);
  tokc_string_free(text);
  return copy;
}

}  // namespace longshore
