#include "trainer/model/export_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/child_process.h"
#include "base/errors.h"
#include "base/log.h"
#include "hf/adapter_directory.h"
#include "model/parameters/adapter.h"
#include "model/parameters/adapter_values.h"
#include "model/parameters/model_spec.h"
#include "model/units/router_load.h"
#include "shard/shard_store.h"
#include "trainer/directory/run_directory.h"
#include "trainer/model/base_identity.h"
#include "trainer/model/frozen_check.h"

namespace longshore {
namespace {

AdapterExport adapter_export(const ModelSource& source) {
  AdapterExport adapter;
  for (const ParamSpec& parameter : source.whole().whole_parameters()) {
    if (parameter.frozen) continue;
    adapter.names[parameter.name] =
        std::string(kAdapterNamePrefix) + source.adapter()->file_name(parameter.name);
  }
  if (const ParamSpec* const table = trained_tied_table(source.whole())) {
    adapter.copies[std::string(kAdapterNamePrefix) + std::string(kTiedHeadName)] = table->name;
  }
  adapter.config = adapter_config_text(source.adapter()->settings());
  return adapter;
}

std::vector<float> whole_values(const ParamSpec& parameter, const ParameterReader& read) {
  std::vector<float> values(static_cast<size_t>(parameter.elements()));
  read(parameter.name, 0, values);
  return values;
}

// Gives the values of an adapter in the order of PEFT.
class AdapterReader {
 public:
  // Both arguments must outlive this.
  AdapterReader(const ModelSpec& spec, const ParameterReader& read) : read_(read) {
    for (const ParamSpec& parameter : spec.whole_parameters()) {
      if (peft_reorders(parameter)) reordered_[parameter.name] = parameter;
    }
  }

  void operator()(const std::string& name, int64_t begin, std::span<float> out) {
    const auto found = reordered_.find(name);
    if (found == reordered_.end()) return read_(name, begin, out);
    if (name_ != name) {
      values_ = to_peft(found->second, whole_values(found->second, read_));
      name_ = name;
    }
    std::ranges::copy(std::span(values_).subspan(static_cast<size_t>(begin), out.size()),
                      out.begin());
  }

 private:
  const ParameterReader& read_;
  std::map<std::string, ParamSpec> reordered_;
  std::string name_;  // of values_
  std::vector<float> values_;
};

// Gives the values of the model with its adapters merged into the matrices that they adapt.
class MergedReader {
 public:
  // `read` gives the trained parameters. Both arguments must outlive this.
  MergedReader(const ModelSource& source, const ParameterReader& read)
      : source_(source), read_(read), adapted_(adapted_matrices(source.arch(), source.whole())) {
    for (const ParamSpec& parameter : source.whole().whole_parameters()) {
      parameters_[parameter.name] = parameter;
    }
  }

  void operator()(const std::string& name, int64_t begin, std::span<float> out) {
    const ParamSpec& parameter = parameters_.at(name);
    if (adapted_.contains(name)) {
      source_.read_initial(name, begin, out);
      const int64_t matrix = parameter.elements() / (parameter.stacked ? parameter.shape[0] : 1);
      for (size_t done = 0; done < out.size();) {
        const int64_t at = begin + static_cast<int64_t>(done);
        const auto count = std::min(static_cast<size_t>(matrix - at % matrix), out.size() - done);
        merge(parameter, at / matrix, at % matrix, out.subspan(done, count));
        done += count;
      }
    } else if (parameter.frozen) {
      source_.read_initial(name, begin, out);
    } else {
      read_(name, begin, out);
    }
  }

 private:
  // Merges elements of one matrix, which is that of an expert if the parameter is stacked.
  void merge(const ParamSpec& parameter, int64_t expert, int64_t begin, std::span<float> out) {
    if (name_ != parameter.name || expert_ != expert) {
      matrix_ = adapted_matrix(parameter, expert);
      name_ = parameter.name;
      expert_ = expert;
    }
    matrix_->merge(begin, out);
  }

  // Returns `rows` rows of one matrix of an adapter's parameter, from `row` on.
  std::vector<float> rows_of(const ParamSpec& factor, int64_t expert, int64_t row,
                             int64_t rows) const {
    const int64_t columns = factor.shape.back();
    const int64_t matrix = factor.shape.at(factor.shape.size() - 2) * columns;
    std::vector<float> values(static_cast<size_t>(rows * columns));
    read_(factor.name, expert * matrix + row * columns, values);
    return values;
  }

  AdaptedMatrix adapted_matrix(const ParamSpec& parameter, int64_t row) const {
    const ArchSpec& arch = source_.arch();
    const AdaptedPart& adapted = adapted_.at(parameter.name);
    const AdapterNames names = adapter_names(adapted.module, adapted.lookup);
    const ParamSpec &a = parameters_.at(names.a), &b = parameters_.at(names.b);
    const int64_t rows = parameter.shape.at(parameter.shape.size() - 2);
    const int64_t columns = parameter.shape.back();
    const bool transposed = adapted.transposed;
    const int64_t expert = parameter.stacked ? row : adapted.expert;
    const int64_t rank = a.shape.at(a.shape.size() - 2);
    std::vector<float> a_values =
        adapted.lookup ? to_peft(a, whole_values(a, read_)) : rows_of(a, expert, 0, rank);
    AdaptedMatrix matrix(adapted.scaling, transposed, rows, columns, std::move(a_values),
                         rows_of(b, expert, adapted.first_output, transposed ? columns : rows));
    if (arch.adapter.magnitudes) {
      matrix.set_magnitudes(
          [&](int64_t begin, std::span<float> out) {
            source_.read_initial(parameter.name, begin, out);
          },
          whole_values(parameters_.at(names.magnitude), read_));
    }
    return matrix;
  }

  const ModelSource& source_;
  const ParameterReader& read_;
  std::map<std::string, AdaptedPart> adapted_;
  std::map<std::string, ParamSpec> parameters_;
  std::string name_;  // of matrix_
  int64_t expert_ = 0;
  std::optional<AdaptedMatrix> matrix_;
};

ExportOptions export_options(const ModelSource& source, const ExportChoice& choice,
                             const ExportTexts& texts) {
  ExportOptions options;
  if (choice.as_fp32) options.dtype = DType::kF32;
  if (exports_adapter(source, choice)) options.adapter = adapter_export(source);
  options.pretrained = !source.base().random();
  options.published = choice.published;
  options.allow_nonfinite = choice.allow_nonfinite;
  options.copies = source.base().copies();
  options.card = texts.card;
  options.texts = texts.files;
  for (const auto& [name, text] : source.tokens().files()) options.texts.emplace(name, text);
  if (source.arch().added_tokens > 0) options.vocabulary = source.arch().vocabulary;
  options.left_out = texts.left_out;
  return options;
}

// Adds the identity of the model below the adapters. An export of a model that was trained as a
// whole does not copy the file of the directory that it began with.
void add_base_identity(const ModelSource& source, const StartIdentity& start,
                       ExportOptions& options) {
  options.left_out.insert(kBaseIdentityName);
  if (!source.has_adapter()) return;
  if (const std::optional<BaseIdentity> identity = identity_of_base(source, start)) {
    options.texts[kBaseIdentityName] = base_identity_text(*identity);
  } else if (!source.base().random()) {
    log_info(std::string("the export has no ") + kBaseIdentityName +
             ", because not all of the model below the adapters was read");
  }
}

// `corrected` says that the run moved the corrections of routers' choices.
ModelSpec exported_spec(const ModelSource& source, const ExportChoice& choice, bool corrected) {
  if (!exports_adapter(source, choice)) {
    ModelSpec merged = merged_spec(source.arch(), source.whole());
    std::map<std::string, int64_t> moved;
    if (corrected) moved = correction_places(source.arch(), source.whole());
    // The values of packed matrices and moved corrections are not those of the files, so they are
    // written anew. In the published form the files hold what an untouched matrix becomes.
    for (UnitSpec& unit : merged.units) {
      for (ParamSpec& parameter : unit.parameters) {
        const bool packed = !choice.published && source.packing().has(parameter.name);
        if (packed || moved.contains(parameter.name)) parameter.frozen = false;
      }
    }
    return merged;
  }
  ModelSpec spec = source.whole();
  for (UnitSpec& unit : spec.units) {
    for (ParamSpec& parameter : unit.parameters) {
      parameter.shape = peft_shape(parameter);
      if (parameter.adapter) parameter.stacked = false;
    }
  }
  return spec;
}

// Gives the corrections that a run moved, and all other values as `read` does.
ParameterReader with_corrections(const ModelSource& source, std::span<const float> corrections,
                                 const ParameterReader& read) {
  if (corrections.empty()) return read;
  const ArchSpec& arch = source.arch();
  LONGSHORE_CHECK(std::ssize(corrections) == arch.layer_count() * arch.moe.experts)
      << corrections.size() << " corrections";
  return [places = correction_places(source.arch(), source.whole()), corrections, read](
             const std::string& name, int64_t begin, std::span<float> out) {
    const auto found = places.find(name);
    if (found == places.end()) return read(name, begin, out);
    const auto first = static_cast<size_t>(found->second + begin);
    std::ranges::copy(corrections.subspan(first, out.size()), out.begin());
  };
}

// `corrections` are those of routers' choices, if the run moved them.
ExportResult export_values(const ModelSource& source, const std::string& destination,
                           const ParameterReader& values, std::span<const float> corrections,
                           const ExportChoice& choice, const ExportTexts& texts,
                           const StartIdentity& start) {
  ExportOptions options = export_options(source, choice, texts);
  add_base_identity(source, start, options);
  // The export reads frozen values once more, and files may have changed since they were loaded.
  forget_reads(source);
  options.before_publish = [&source, &start] {
    const std::string difference = frozen_difference(start, read_identity(source, nullptr), source,
                                                     "when the run began; nothing was exported");
    if (!difference.empty()) throw CheckpointError(difference);
  };
  const ModelSpec spec = exported_spec(source, choice, !corrections.empty());
  const ParameterReader read = with_corrections(source, corrections, values);
  if (!source.has_adapter()) {
    return export_model(source.directory(), spec, destination, read, options);
  }
  if (exports_adapter(source, choice)) {
    return export_model(source.directory(), spec, destination, AdapterReader(source.whole(), read),
                        options);
  }
  return export_model(source.directory(), spec, destination, MergedReader(source, read), options);
}

// `module` is "NAME=DIRECTORY" of the adapter, `run` names the run for a command.
std::string next_commands_of_adapter(const std::string& module, const std::string& run,
                                     const AdapterSettings& settings) {
  std::string merge = "  longshore export " + run + " --merged --to DIR";
  if (settings.base.starts_with('/')) {
    merge += "\n" + std::string(kAdapterConfigName) + " names the model by its path, " +
             settings.base + "; before the adapter goes to another machine, set " +
             "base_model_name_or_path to the model's hub id";
  }
  // vLLM refuses these, but for patterns, which it does not read: it would scale every matrix by
  // one rank and alpha (vllm/lora/peft_helper.py).
  const bool patterns = !settings.ranks.empty() || !settings.alphas.empty();
  if (settings.dora || patterns || !settings.trained.empty() ||
      settings.bias != AdapterBias::kNone) {
    return "next, for a model that holds the adapter (PEFT loads the adapter itself; vLLM serves "
           "no adapters with DoRA, patterns, biases or whole modules):\n" +
           merge;
  }
  return "next, where the program is installed and knows the architecture:\n"
         "  vllm serve " +
         shell_quoted(settings.base) + " --enable-lora --max-lora-rank " +
         std::to_string(settings.rank) + " --lora-modules " + shell_quoted(module) +
         "\nor, for a model that holds the adapter:\n" + merge;
}

// Fills `out` with values of a unit's parameter from its element `begin` on. The rank holds all of
// it.
void read_master(Engine& engine, ParamRef ref, int64_t begin, std::span<float> out) {
  const FlatLayout& layout = engine.layouts().at(static_cast<size_t>(ref.unit.value));
  const Segment segment = layout.parameter_segment(ref.index);
  const auto lease = engine.store().state(ref.unit);
  const StateSpans state = lease->segment(segment);
  if (segment != Segment::kFrozen) {
    const int64_t place = layout.parameter(ref.index).begin - layout.segment(segment).begin;
    return read_values(state, place + begin, out);
  }
  const StorageType type = engine.spec().parameter(ref).storage(layout.compute());
  const Bytes width = width_of(number_of(type));
  const Bytes place = layout.parameter_bytes(ref.index).begin - layout.segment_bytes(segment).begin;
  load_numbers(type,
               state.frozen.subspan(static_cast<size_t>(place + begin * width),
                                    out.size() * static_cast<size_t>(width)),
               out);
}

}  // namespace

bool asks_for_published(const RunConfig& config) {
  return config.checkpoint.export_format == CheckpointSection::ExportFormat::kPublished;
}

bool exports_adapter(const ModelSource& source, const ExportChoice& choice) {
  return source.has_adapter() && !choice.merged;
}

ParameterReader master_reader(const ModelSource& source, Engine& engine) {
  std::map<std::string, std::vector<ParamRef>> owners;  // unit pieces by parameter name
  for (const UnitSpec& unit : engine.spec().units) {
    for (size_t i = 0; i < unit.parameters.size(); ++i) {
      owners[unit.parameters[i].name].push_back({unit.id, static_cast<int32_t>(i)});
    }
  }
  return [&source, &engine, owners = std::move(owners)](const std::string& name, int64_t begin,
                                                        std::span<float> out) {
    const auto owner = owners.find(name);
    LONGSHORE_CHECK(owner != owners.end()) << "no parameter " << name;
    if (engine.plan().frozen_in_files && engine.spec().parameter(owner->second.front()).frozen) {
      return source.read_initial(name, begin, out);
    }
    const int64_t end = begin + static_cast<int64_t>(out.size());
    for (const ParamRef ref : owner->second) {
      const int64_t first = engine.spec().parameter(ref).first_element();
      const int64_t from = std::max(begin, first),
                    to = std::min(end, first + engine.spec().parameter(ref).elements());
      if (from >= to) continue;
      read_master(engine, ref, from - first,
                  out.subspan(static_cast<size_t>(from - begin), static_cast<size_t>(to - from)));
    }
  };
}

void check_export_format(const RunConfig& config, const ModelSource& source) {
  if (!asks_for_published(config)) return;
  const std::string key = "checkpoint.export_format = \"published\": ";
  const std::string problem = published_form_problem(source.directory(), !source.base().random());
  if (!problem.empty()) throw ConfigError(key + problem);
  if (config.adapter.packs()) {
    throw ConfigError(key +
                      "adapter.base packs the model anew, so that its matrices have other values "
                      "than its files; set adapter.base = \"published\"");
  }
}

Bytes export_bytes(const RunConfig& config, const ModelSource& source, bool merged) {
  // Without weights nothing says which matrices are packed.
  const bool published =
      asks_for_published(config) && source.base().has_weights() &&
      published_form_problem(source.directory(), !source.base().random()).empty();
  const ExportChoice choice{.merged = merged, .published = published};
  ExportOptions options = export_options(source, choice, {});
  options.pretrained = options.pretrained && source.base().has_weights();
  const ModelSpec spec = exported_spec(source, choice, /*corrected=*/false);
  return plan_export(source.directory(), spec, options).tensor_bytes;
}

Bytes run_export_bytes(const RunConfig& config, const ModelSource& source) {
  using Export = CheckpointSection::Export;
  const Export asked = config.checkpoint.export_model;
  return asked == Export::kNever ? 0 : export_bytes(config, source, asked == Export::kMerged);
}

ExportResult export_run(const ModelSource& source, Engine& engine, const std::string& destination,
                        const ExportChoice& choice, const ExportTexts& texts,
                        const StartIdentity& start) {
  LONGSHORE_CHECK(engine.plan().topology.shard_ranks == 1) << "the engine holds shards";
  engine.apply_updates();
  const std::vector<float> corrections = engine.runner().router_corrections();
  return export_values(source, destination, master_reader(source, engine), corrections, choice,
                       texts, start);
}

std::string next_commands(const std::string& directory, const ModelSource& source,
                          const ExportChoice& choice, const std::string& run) {
  std::filesystem::path plain = std::filesystem::path(directory).lexically_normal();
  if (!plain.has_filename()) plain = plain.parent_path();
  std::string name = plain.filename().string();
  if (name.starts_with("hf") && plain.has_parent_path()) {
    name = plain.parent_path().filename().string();
  }
  const std::string quoted = shell_quoted(plain.string());
  if (exports_adapter(source, choice)) {
    return next_commands_of_adapter(name + "=" + plain.string(), run, source.adapter()->settings());
  }
  return "next, where the programs are installed and know the architecture:\n"
         "  vllm serve " +
         quoted +
         "\n"
         "  python convert_hf_to_gguf.py " +
         quoted + " --outfile " + shell_quoted(name + ".gguf") +
         "   # of llama.cpp\n"
         "  hf upload " +
         shell_quoted("OWNER/" + name) + " " + quoted;
}

void check_run_export(const RunConfig& config, const ModelDirectory& model) {
  if (config.checkpoint.export_model == CheckpointSection::Export::kNever) return;
  if (config.run.dir.empty()) return;
  try {
    check_export_place(model, config.run.dir);
  } catch (const ConfigError& error) {
    throw ConfigError("run.dir: " + std::string(error.what()));
  }
}

std::string free_export_directory(const ModelSource& source, const std::string& wanted,
                                  const ExportChoice& choice, const ExportTexts& texts) {
  constexpr int kMostTries = 1000;
  ExportOptions options = export_options(source, choice, texts);
  if (source.has_adapter()) options.texts[kBaseIdentityName] = "";  // the name alone counts here
  check_export_place(source.directory(), std::filesystem::path(wanted).parent_path().string());
  for (int number = 1; number <= kMostTries; ++number) {
    const std::string path = number == 1 ? wanted : wanted + "-" + std::to_string(number);
    try {
      check_export_destination(source.directory(),
                               exported_spec(source, choice, /*corrected=*/false), path, options);
      return path;
    } catch (const ConfigError& error) {
      log_warning(std::string(error.what()) + " (the export is written next to it)");
    }
  }
  throw ConfigError(wanted + ": exists, and so do all alternatives; move them away");
}

ExportResult export_checkpoint(const ModelSource& source, const Checkpoint& checkpoint,
                               const std::string& destination, const ExportChoice& choice,
                               const ExportTexts& texts) {
  std::set<std::string> trained;
  for (const CheckpointParameter& parameter : checkpoint.manifest().parameters) {
    trained.insert(parameter.name);
  }
  const ParameterReader read = [&](const std::string& name, int64_t begin, std::span<float> out) {
    if (trained.contains(name)) {
      checkpoint.read(name, kMasterKind, begin, out);
    } else {
      source.read_initial(name, begin, out);
    }
  };
  const RunProgress& progress = checkpoint.manifest().progress;
  return export_values(source, destination, read, progress.router_corrections, choice, texts,
                       progress.start);
}

}  // namespace longshore
