// ArrayRows: the elements of a JSON array as lines. Internal to src/data.
#pragma once

#include <memory>
#include <string>

#include "data/byte_source.h"

namespace longshore {

// `front` are the first bytes of the text, already taken from `source`; the first that is not blank
// is the array's bracket. What is wrong inside an element is left to who reads the line.
std::unique_ptr<ByteSource> make_array_rows(std::string front, std::unique_ptr<ByteSource> source,
                                            const std::string& path);

}  // namespace longshore
