// A run file in TOML: what is accepted, written out, loads to the same configuration.
#include "config/run_config.h"
#include "tests/fuzz/fuzz_targets.h"

namespace longshore {

bool fuzz_run_file(std::string_view bytes) {
  const MemoryFile memory(bytes);
  const RunConfig config = load_run_config({memory.path()}, {});
  const MemoryFile written(to_toml(config));
  LONGSHORE_CHECK(load_run_config({written.path()}, {}) == config);
  return true;
}

}  // namespace longshore
