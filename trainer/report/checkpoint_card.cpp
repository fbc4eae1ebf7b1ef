#include "trainer/report/checkpoint_card.h"

#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/log.h"
#include "trainer/report/model_card.h"

namespace longshore {

namespace {

namespace fs = std::filesystem;

CardBase base_of(const ModelSource& source, const RunConfig& config) {
  constexpr Bytes kMaxCardBytes = 4 * kMiB;
  CardBase base{.family = source.arch().family, .parameters = source.whole().parameter_elements()};
  if (source.random()) return base;
  // A hub id resolves to a directory of the local cache whose name is not the id.
  std::error_code ignored;
  const std::string& path = source.directory().path();
  base.on_hub = !fs::exists(config.model.path, ignored);
  base.name = base.on_hub ? config.model.path : fs::canonical(path).filename().string();
  if (fs::exists(path + "/README.md", ignored)) {
    base.card = read_whole_file(path + "/README.md", kMaxCardBytes);
  }
  return base;
}

}  // namespace

ExportTexts texts_of_checkpoint(const ModelSource& source, const RunConfig& config,
                                const std::string& checkpoint, Step step) {
  // A checkpoint's path is <run.dir>/checkpoints/<name>.
  std::error_code ignored;
  const fs::path directory =
      fs::absolute(checkpoint, ignored).lexically_normal().parent_path().parent_path();
  ExportTexts texts;
  if (!fs::exists(directory / "metrics.jsonl", ignored)) return texts;
  add_trained_text(config, source, directory.string(), texts);
  try {
    CardBase base = base_of(source, config);
    base.use = texts.lines;
    texts.card = model_card(read_run_record(directory.string()), base, step);
  } catch (const Error& error) {
    // The export continues without a card if the card cannot be made.
    log_warning(std::string(error.what()) + "; the export has no model card");
  }
  return texts;
}

}  // namespace longshore
