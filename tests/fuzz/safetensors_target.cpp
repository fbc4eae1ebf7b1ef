// A safetensors file: its tensors lie end to end, can be found, and can be read.
#include "hf/safetensors_reader.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_safetensors(std::string_view bytes) {
  const MemoryFile memory(bytes);
  const SafetensorsFile file = SafetensorsFile::open(memory.path());
  Bytes end = file.tensors().empty() ? file.file_bytes() : file.tensors().front().file_begin;
  for (const TensorInfo& tensor : file.tensors()) {
    LONGSHORE_CHECK(tensor.file_begin == end && tensor.bytes >= 0) << tensor.name;
    LONGSHORE_CHECK(file.find(tensor.name) == &tensor) << tensor.name;
    int64_t elements = 1;
    for (const int64_t dimension : tensor.shape) {
      const auto product = checked_multiply(elements, dimension);
      LONGSHORE_CHECK(product.has_value()) << tensor.name;
      elements = *product;
    }
    LONGSHORE_CHECK(tensor.elements() == elements) << tensor.name;
    file.hash(tensor);
    end += tensor.bytes;
  }
  LONGSHORE_CHECK(end == file.file_bytes());
  return true;
}

}  // namespace longshore
