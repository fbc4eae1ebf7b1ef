#include "trainer/commands/input_check.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>

#include "config/field_table.h"
#include "data/rows/row_block.h"
#include "trainer/data/run_data.h"
#include "trainer/data/run_prepare.h"
#include "trainer/model/export_run.h"
#include "trainer/model/model_notes.h"
#include "trainer/model/trained_text.h"
#include "trainer/report/data_inspection.h"
#include "trainer/setup/run_setup.h"
#include "trainer/setup/run_space.h"
#include "trainer/use/reference_model.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// Only the first rows of each file are checked; `prepare` reads all of them.
constexpr int64_t kRows = 16;

class InputCheck {
 public:
  explicit InputCheck(const RunConfig& config) : config_(config) {}

  CheckedInputs run() {
    check_model();
    check_data(checked_.source.get());
    if (checked_.source && ends_) {
      checked_.notes = end_notes(ends_->ends(), conversations_, *checked_.source);
    }
    if (checked_.source) {
      std::ranges::copy(model_notes(*checked_.source), std::back_inserter(checked_.notes));
    }
    check_rate();
    check_directories();
    check_space();
    return std::move(checked_);
  }

  std::vector<InputProblem> run_data(const ModelSource& source) {
    check_data(&source);
    return std::move(checked_.problems);
  }

 private:
  // `source` is null if the model is unusable.
  void check_data(const ModelSource* source) {
    check_preparation(source);
    DataSection named = config_.data;
    attempt([&] { named = with_data_files(config_.data); });
    if (preparation_ && preparation_->options({}).tokenizer != nullptr) {
      ends_.emplace(preparation_->options({}).tokenizer);
    }
    for (const std::string& path : named.train) check_file(path, /*trained=*/true);
    for (const std::string& path : named.eval) check_file(path, /*trained=*/false);
    attempt([&] {
      for (const auto& [name, set] : evaluation_sets(config_)) {
        if (name.empty()) continue;
        const DataSection files = with_data_files(set.data);
        for (const std::string& path : files.eval) check_file(path, /*trained=*/false);
      }
    });
  }

  // Once, although the model and the preparation of the data both read a tokenizer with new tokens.
  void add(ExitCode code, const std::string& text) {
    const bool known =
        std::ranges::find(checked_.problems, text, &InputProblem::text) != checked_.problems.end();
    if (!known) checked_.problems.push_back({code, text});
  }

  // Runs `work` and records its error. Returns true if it did not throw.
  template <typename Work>
  bool attempt(Work work) {
    try {
      work();
      return true;
    } catch (const ConfigError& error) {
      for (const std::string& problem : error.problems()) add(error.exit_code(), problem);
    } catch (const IoError& error) {
      add(ExitCode::kData, error.what());
    } catch (const Error& error) {
      add(error.exit_code(), error.what());
    }
    return false;
  }

  // Adapters begin at zero and stay near it with the rates of full fine-tuning.
  void check_rate() {
    constexpr double kLeast = 2e-5;
    if (!config_.adapter.on() || config_.optimizer.lr >= kLeast) return;
    if (config_.train.loss != LossKind::kSft) return;  // other losses take smaller rates
    const Key& key = key_named("optimizer.lr");
    checked_.notes.push_back("optimizer.lr = " + toml_text(key, key.get(config_)) +
                             " is a rate for full fine-tuning and hardly moves an adapter; 2e-4 is "
                             "usual");
  }

  void check_model() {
    if (config_.model.path.empty()) return;
    attempt([&] { checked_.source = open_source(config_); });
    if (checked_.source) attempt([&] { check_export_format(config_, *checked_.source); });
    if (!checked_.source || !has_other_reference(config_)) return;
    attempt([&] { other_reference_config(config_, *checked_.source); });
  }

  void check_preparation(const ModelSource* source) {
    std::error_code ignored;
    const std::string model = source != nullptr ? source->directory().path() : config_.model.path;
    const std::string directory = tokenizer_directory(config_, model);
    // A missing model directory is already reported.
    if (directory.empty() ||
        (config_.tokenizer.path == "auto" && !fs::is_directory(directory, ignored))) {
      return;
    }
    const int64_t vocabulary =
        source != nullptr ? source->arch().vocabulary : std::numeric_limits<int32_t>::max();
    attempt([&] { preparation_.emplace(config_, model, vocabulary); });
  }

  void check_file(const std::string& path, bool trained) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) {
      // A name that may be a data set of the hub is already reported, with how to fetch it.
      const bool reported = std::ranges::any_of(checked_.problems, [&path](const auto& problem) {
        return problem.text.starts_with(path + ": ");
      });
      if (!reported) add(ExitCode::kData, path + ": no such file");
    } else if (!fs::is_regular_file(status)) {
      add(ExitCode::kData, path + ": not a regular file");
    } else if (::access(path.c_str(), R_OK) != 0) {
      add(ExitCode::kData, path + ": may not be read");
    } else if (fs::file_size(path, error) == 0) {
      add(ExitCode::kData, path + ": is empty");
    } else if (preparation_ && !is_text_file(path)) {
      attempt([&] { check_rows(path, trained); });
    }
  }

  void check_rows(const std::string& path, bool trained) {
    const PrepareOptions options = preparation_->options({path});
    const std::vector<InspectedRow> rows = inspect_rows(options, 0, kRows);
    if (trained && ends_) {
      const bool skip = config_.data.bad_rows == DataSection::BadRows::kSkip;
      const auto format = detect_file_format(JsonlReader(path), row_format_options(options), skip);
      conversations_ = conversations_ || holds_conversations(name_of(format), config_.data);
      for (const InspectedRow& row : rows) {
        if (row.problem.empty()) ends_->take(std::span<const TokenId>(row.labels));
        conversations_ = conversations_ || row.chat_prompt;
      }
    }
    if (rows.empty()) add(ExitCode::kData, path + ": has no rows");
    if (config_.data.bad_rows == DataSection::BadRows::kSkip) return;
    for (const InspectedRow& row : rows) {
      if (row.problem.empty() || row.left_out) continue;
      add(ExitCode::kData, row.place + ": " + row.problem);
    }
  }

  void check_directories() {
    const OffloadSection& offload = config_.offload;
    const bool drives = offload.optimizer == OffloadSection::Optimizer::kNvme ||
                        offload.activations == OffloadSection::Activations::kNvme;
    for (const std::string& directory : drives ? offload.nvme : std::vector<std::string>{}) {
      std::error_code ignored;
      if (fs::is_directory(directory, ignored)) {
        check_writable("offload.nvme", directory);
      } else if (fs::exists(directory, ignored)) {
        add(ExitCode::kConfig, "offload.nvme: " + directory + ": is not a directory");
      } else {
        add(ExitCode::kConfig,
            "offload.nvme: " + directory + ": no such directory; make it, or mount its drive");
      }
    }
    if (!config_.run.dir.empty()) check_writable("run.dir", config_.run.dir);
    if (checked_.source) attempt([&] { check_run_export(config_, checked_.source->directory()); });
  }

  void check_space() {
    if (!checked_.source || config_.run.dir.empty()) return;
    const std::optional<RunSpace> space = read_run_space(
        config_, checked_.source->spec(), run_export_bytes(config_, *checked_.source));
    if (!space) return;
    const std::string refusal = space_refusal(*space), warning = space_warning(*space);
    if (!refusal.empty()) add(ExitCode::kDoesNotFit, refusal);
    if (refusal.empty() && !warning.empty()) checked_.notes.push_back(warning);
  }

  // Checks the directory, or its nearest existing parent.
  void check_writable(const std::string& key, const std::string& directory) {
    std::error_code ignored;
    fs::path path = fs::absolute(directory, ignored).lexically_normal();
    while (path.has_relative_path() && !fs::exists(path, ignored)) path = path.parent_path();
    struct statvfs system{};
    const bool read_only =
        ::statvfs(path.c_str(), &system) == 0 && (system.f_flag & ST_RDONLY) != 0;
    if (!fs::is_directory(path, ignored)) {
      add(ExitCode::kConfig, key + ": " + path.string() + ": is not a directory");
    } else if (read_only || ::access(path.c_str(), W_OK | X_OK) != 0) {
      add(ExitCode::kConfig, key + ": " + path.string() + ": may not be written to" +
                                 (read_only ? ", its file system is read-only" : ""));
    }
  }

  const RunConfig& config_;
  std::optional<RunPreparation> preparation_;
  std::optional<EndCounter> ends_;  // ends in the first training rows; needs a tokenizer
  bool conversations_ = false;
  CheckedInputs checked_;
};

}  // namespace

CheckedInputs check_inputs(const RunConfig& config) {
  return InputCheck(config).run();
}

std::vector<InputProblem> check_data_files(const RunConfig& config, const ModelSource& source) {
  return InputCheck(config).run_data(source);
}

}  // namespace longshore
