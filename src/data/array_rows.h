// ArrayRows: the elements of a JSON array as lines. Internal to src/data.
#pragma once

#include <memory>
#include <string>

#include "data/byte_source.h"

namespace longshore {

// `front` is the start of the text, already read from `source`; its first non-blank byte is the
// array's bracket. The reader of the lines reports errors inside an element.
std::unique_ptr<ByteSource> make_array_rows(std::string front, std::unique_ptr<ByteSource> source,
                                            const std::string& path);

}  // namespace longshore
