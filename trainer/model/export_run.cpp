#include "trainer/model/export_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/log.h"
#include "shard/shard_store.h"
#include "trainer/directory/run_directory.h"

namespace longshore {
namespace {

ExportOptions export_options(const ModelSource& source, bool as_fp32, const ExportTexts& texts) {
  ExportOptions options;
  if (as_fp32) options.dtype = DType::kF32;
  options.pretrained = !source.random();
  options.copies = source.copies();
  options.card = texts.card;
  options.texts = texts.files;
  options.left_out = texts.left_out;
  return options;
}

}  // namespace

ParameterReader master_reader(Engine& engine) {
  std::map<std::string, std::vector<ParamRef>> owners;  // unit pieces by parameter name
  for (const UnitSpec& unit : engine.spec().units) {
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      owners[unit.parameters[i].name].push_back({unit.id, static_cast<int32_t>(i)});
    }
  }
  return [&engine, owners = std::move(owners)](const std::string& name, int64_t begin,
                                               std::span<float> out) {
    const auto owner = owners.find(name);
    LONGSHORE_CHECK(owner != owners.end()) << "no parameter " << name;
    const int64_t end = begin + static_cast<int64_t>(out.size());
    for (const ParamRef ref : owner->second) {
      const FlatLayout& layout = engine.layouts().at(static_cast<size_t>(ref.unit.value));
      const Segment segment = layout.parameter_segment(ref.index);
      const ElementRange place = layout.parameter(ref.index);
      const int64_t first = engine.spec().parameter(ref).first_element();
      const int64_t from = std::max(begin, first), to = std::min(end, first + place.elements);
      if (from >= to) continue;
      const auto state = engine.store().state(ref.unit);
      read_values(state->segment(segment),
                  place.begin - layout.segment(segment).begin + from - first,
                  out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
    }
  };
}

ExportResult export_run(const ModelSource& source, Engine& engine, const std::string& destination,
                        bool as_fp32, bool allow_nonfinite, const ExportTexts& texts) {
  LONGSHORE_CHECK(engine.plan().topology.shard_ranks == 1) << "the engine holds shards";
  engine.apply_updates();
  ExportOptions options = export_options(source, as_fp32, texts);
  options.allow_nonfinite = allow_nonfinite;
  return export_model(source.directory(), source.whole(), destination, master_reader(engine),
                      options);
}

std::string next_commands(const std::string& directory) {
  std::filesystem::path plain = std::filesystem::path(directory).lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  std::string name = plain.filename().string();
  if (name.starts_with("hf") && plain.has_parent_path()) {
    name = plain.parent_path().filename().string();
  }
  const std::string quoted = shell_quoted(plain.string());
  return "next, where the programs are installed and know the architecture:\n"
         "  vllm serve " +
         quoted +
         "\n"
         "  python convert_hf_to_gguf.py " +
         quoted + " --outfile " + shell_quoted(name + ".gguf") +
         "   # of llama.cpp\n"
         "  hf upload " +
         shell_quoted(name) + " " + quoted;
}

void check_run_export(const RunConfig& config, const ModelSource& source) {
  if (config.checkpoint.export_model != CheckpointSection::Export::kEnd) return;
  if (config.run.dir.empty()) return;
  try {
    check_export_place(source.directory(), config.run.dir);
  } catch (const ConfigError& error) {
    throw ConfigError("run.dir: " + std::string(error.what()));
  }
}

std::string free_export_directory(const ModelSource& source, const std::string& wanted,
                                  const ExportTexts& texts) {
  constexpr int kMostTries = 1000;
  check_export_place(source.directory(), std::filesystem::path(wanted).parent_path().string());
  for (int number = 1; number <= kMostTries; ++number) {
    const std::string path = number == 1 ? wanted : wanted + "-" + std::to_string(number);
    try {
      check_export_destination(source.directory(), source.whole(), path,
                               export_options(source, false, texts));
      return path;
    } catch (const ConfigError& error) {
      log_warning(std::string(error.what()) + " (the export is written next to it)");
    }
  }
  throw ConfigError(wanted + ": exists, and so do all alternatives; move them away");
}

ExportResult export_checkpoint(const ModelSource& source, const Checkpoint& checkpoint,
                               const std::string& destination, const ExportTexts& texts) {
  std::set<std::string> trained;
  for (const CheckpointParameter& parameter : checkpoint.manifest().parameters) {
    trained.insert(parameter.name);
  }
  const ParameterReader read = [&](const std::string& name, int64_t begin, std::span<float> out) {
    if (trained.contains(name)) {
      checkpoint.read(name, StateKind::kMaster, begin, out);
    } else {
      source.read_initial(name, begin, out);
    }
  };
  return export_model(source.directory(), source.whole(), destination, read,
                      export_options(source, /*as_fp32=*/false, texts));
}

}  // namespace longshore
