// A model's directory: config.json, the index (absent if empty) and model.safetensors, packed
// ones too.
#include "hf/model_directory.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_model(std::string_view bytes) {
  std::vector<std::string> parts = parts_of(bytes, 3);
  std::vector<std::pair<std::string_view, std::string>> files = {{"config.json", parts[0]},
                                                                 {"model.safetensors", parts[2]}};
  if (!parts[1].empty()) files.emplace_back("model.safetensors.index.json", parts[1]);
  const ModelDirectory model = ModelDirectory::open(directory_with(files));
  for (const ModelDirectory::TensorRef& ref : model.tensors()) {
    LONGSHORE_CHECK(model.find(ref.tensor->name).tensor == ref.tensor) << ref.tensor->name;
    if (ref.packed == nullptr) continue;
    std::vector<float> values(static_cast<size_t>(ref.tensor->elements()));
    ref.packed->read(0, values);
  }
  model.fingerprint();
  return true;
}

}  // namespace longshore
