#include "tests/fuzz/fuzz_targets.h"

#include <sys/mman.h>

#include <algorithm>
#include <filesystem>

#include "text/tokenizer_trainer.h"

namespace longshore {

bool fuzz_adapter(std::string_view bytes);
bool fuzz_chat_template(std::string_view bytes);
bool fuzz_checkpoint_manifest(std::string_view bytes);
bool fuzz_config(std::string_view bytes);
bool fuzz_dataset_card(std::string_view bytes);
bool fuzz_drive_manifest(std::string_view bytes);
bool fuzz_model(std::string_view bytes);
bool fuzz_parquet(std::string_view bytes);
bool fuzz_rows(std::string_view bytes);
bool fuzz_run_file(std::string_view bytes);
bool fuzz_safetensors(std::string_view bytes);
bool fuzz_store(std::string_view bytes);
bool fuzz_token_file(std::string_view bytes);
bool fuzz_tokenizer(std::string_view bytes);
bool fuzz_weight_index(std::string_view bytes);

std::span<const FuzzTarget> fuzz_targets() {
  static constexpr FuzzTarget kTargets[] = {{"adapter", fuzz_adapter},
                                            {"chat_template", fuzz_chat_template},
                                            {"checkpoint_manifest", fuzz_checkpoint_manifest},
                                            {"config", fuzz_config},
                                            {"dataset_card", fuzz_dataset_card},
                                            {"drive_manifest", fuzz_drive_manifest},
                                            {"model", fuzz_model},
                                            {"parquet", fuzz_parquet},
                                            {"rows", fuzz_rows},
                                            {"run_file", fuzz_run_file},
                                            {"safetensors", fuzz_safetensors},
                                            {"store", fuzz_store},
                                            {"token_file", fuzz_token_file},
                                            {"tokenizer", fuzz_tokenizer},
                                            {"weight_index", fuzz_weight_index}};
  return kTargets;
}

bool accepts(const FuzzTarget& target, std::string_view bytes) {
  try {
    return target.run(bytes);
  } catch (const CheckFailure&) {
    throw;
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::string> parts_of(std::string_view bytes, size_t most) {
  std::vector<std::string> parts;
  while (parts.size() + 1 < most) {
    const size_t end = bytes.find('\x1e');
    if (end == std::string_view::npos) break;
    parts.emplace_back(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
  }
  parts.emplace_back(bytes);
  parts.resize(most);
  return parts;
}

MemoryFile::MemoryFile(std::string_view bytes)
    : fd_(::memfd_create("input", MFD_CLOEXEC), "input") {
  LONGSHORE_CHECK(fd_.valid());
  write_all(fd_, bytes);
}

std::string directory_with(const std::vector<std::pair<std::string_view, std::string>>& files) {
  struct Directory {
    std::string path = std::filesystem::temp_directory_path() / "longshore-fuzz-XXXXXX";
    Directory() { LONGSHORE_CHECK(::mkdtemp(path.data()) != nullptr); }
    ~Directory() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Directory directory;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path)) {
    std::filesystem::remove_all(entry);
  }
  for (const auto& [name, bytes] : files) {
    write_all(create_file(directory.path + "/" + std::string(name)), bytes);
  }
  return directory.path;
}

const Tokenizer& byte_level_tokenizer() {
  static const Tokenizer tokenizer = [] {
    const TrainedTokenizer trained = byte_tokenizer({.eos_token = "</s>"});
    return Tokenizer::from_files(
        {.tokenizer = trained.tokenizer_json, .tokenizer_config = trained.tokenizer_config_json},
        "bytes");
  }();
  return tokenizer;
}

}  // namespace longshore
