// model.safetensors.index.json: names of files are plain, and each has tensors.
#include "hf/weight_index.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_weight_index(std::string_view bytes) {
  const WeightIndex index = parse_weight_index(bytes, "index");
  for (const auto& [file, tensors] : index.tensors_of_file) {
    LONGSHORE_CHECK(file.find('/') == std::string::npos && !file.starts_with(".")) << file;
    LONGSHORE_CHECK(!tensors.empty()) << file;
  }
  const WeightIndex again = parse_weight_index(format_weight_index(index), "index");
  LONGSHORE_CHECK(again.tensors_of_file == index.tensors_of_file);
  return true;
}

}  // namespace longshore
