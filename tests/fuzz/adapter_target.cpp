// A directory of a PEFT adapter: adapter_config.json and adapter_model.safetensors.
#include "hf/adapter_directory.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_adapter(std::string_view bytes) {
  const std::vector<std::string> parts = parts_of(bytes, 2);
  const AdapterDirectory adapter = AdapterDirectory::open(
      directory_with({{kAdapterConfigName, parts[0]}, {kAdapterWeightsName, parts[1]}}));
  for (const std::string& name : adapter.names()) {
    int64_t elements = 1;
    for (const int64_t dimension : adapter.shape(name)) elements *= dimension;
    std::vector<float> values(static_cast<size_t>(elements));
    adapter.read(name, 0, values);
  }
  LONGSHORE_CHECK(adapter.settings().rank > 0);
  return true;
}

}  // namespace longshore
