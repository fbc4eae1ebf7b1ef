#include "trainer/data/run_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <ranges>

#include "base/bytes.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/texts.h"
#include "data/tokens/dataset.h"
#include "model/losses/losses.h"
#include "trainer/data/run_prepare.h"

namespace longshore {

namespace {

constexpr size_t kLongestSetName = 200;

// Returns the key with its value, as a run file has it: train.loss = "kto".
std::string line_of(LossKind loss) {
  return "train.loss = \"" + std::string(traits_of(loss).name) + "\"";
}

DataPart part_of(const Dataset& data, bool held_out, double fraction) {
  DataPart part{.held_out = held_out, .fraction = fraction, .documents = data.document_count()};
  for (int64_t document = 0; document < part.documents; ++document) {
    part.tokens += data.document_tokens(document);
    part.trained_tokens += data.document_trained_tokens(document);
  }
  return part;
}

// Sets the documents, of which the training data has `weights` or is mixed.
void combine_files(SequenceData& data, PreparedData& prepared, const std::vector<double>& weights,
                   const HoldOut& hold_out, const FileMix& mix) {
  std::vector<std::shared_ptr<const Dataset>> files;
  for (auto& file : prepared.files) files.push_back(std::move(file));
  auto all = std::make_unique<CombinedDataset>(std::move(files), weights, hold_out, mix);
  if (mix.on()) data.mix = mix_text(mix, all->rows(), all->rows_read());
  data.dataset = std::move(all);
}

// Throws if rows have the format of a loss of its own and the run's loss is another, or the other
// way round. `taken`: it is the run's.
void check_own_rows(const FileReport& file, const LossTraits& loss, bool taken) {
  if ((file.format == loss.name) == taken) return;
  const std::string name = "\"" + std::string(loss.name) + "\"";
  throw ConfigError(file.path + ": train.loss = " + name + " and rows of token ids with " +
                    loss.own_rows + " go together, but train.loss is " +
                    (taken ? name + " and the rows are of format \"" + file.format +
                                 "\"; give such rows, or set " + line_of(LossKind::kSft)
                           : "another; set it to " + name +
                                 ", or data.format = \"tokens\" to train without them"));
}

// Throws if rows are judged answers and the loss takes none, or the other way round. KTO takes each
// answer of a pair as a row.
void check_loss(const RunConfig& config, const DataReport& report) {
  const LossTraits& loss = traits_of(config.train.loss);
  for (const FileReport& file : report.files) {
    for (const LossTraits& own : kLossTable | std::views::reverse) {
      if (own.own_rows != nullptr) check_own_rows(file, own, own.kind == loss.kind);
    }
    const bool pairs = file.format == name_of(DataSection::Format::kPreference);
    const bool rows = file.format == name_of(DataSection::Format::kUnpaired);
    if (loss.judged ? pairs || (rows && !loss.paired()) : !pairs && !rows) continue;
    if (rows) {
      throw ConfigError(file.path + ": its rows are single answers with a label, which " +
                        line_of(LossKind::kKto) +
                        " takes; set it, or leave the label out of the rows to train good answers "
                        "alone");
    }
    if (loss.judged) {
      throw ConfigError(
          file.path + ": rows of format \"" + file.format + "\", but " +
          (loss.paired() ? "train.loss needs pairs"
                         : line_of(loss.kind) + " needs answers with a label, or pairs") +
          " of a chosen and a rejected answer; give such rows, or set " + line_of(LossKind::kSft));
    }
    throw ConfigError(file.path + ": its rows are pairs of a chosen and a rejected answer, which " +
                      line_of(LossKind::kSft) + " does not take; set " + line_of(LossKind::kDpo) +
                      " or another loss over pairs, or data.format = \"messages\" or "
                      "\"prompt-completion\" to train "
                      "the conversation or the chosen answer alone");
  }
}

// Warns if all rows that KTO learns from have one label: it then only raises, or only lowers, the
// probability of every answer.
void warn_of_one_label(const RunConfig& config, const Dataset& data) {
  int64_t good = 0;
  for (int64_t document = 0; document < data.document_count(); ++document) {
    good += data.is_desirable(document) ? 1 : 0;
  }
  const int64_t bad = data.document_count() - good;
  const bool good_counts = good > 0 && config.preference.desirable_weight > 0.0;
  const bool bad_counts = bad > 0 && config.preference.undesirable_weight > 0.0;
  if (good_counts && bad_counts) return;
  const std::string labels =
      format_count(good) + " answers have label true and " + format_count(bad) + " label false";
  if (!good_counts && !bad_counts) {
    log_warning(labels +
                ", and preference.desirable_weight or undesirable_weight is 0 for all of them: the "
                "loss is 0 and nothing is learned");
  } else {
    log_warning(labels +
                ", and answers of weight 0 do not count: train.loss = \"kto\" learns from " +
                (good_counts ? "good" : "bad") + " answers alone; give it rows of both labels");
  }
}

}  // namespace

bool has_evaluation_data(const RunConfig& config) {
  return !config.data.eval.empty() || config.eval.split > 0.0 || !config.eval.sets.empty();
}

std::vector<std::pair<std::string, RunConfig>> evaluation_sets(const RunConfig& config) {
  std::vector<std::pair<std::string, RunConfig>> sets;
  if (!config.data.eval.empty() || config.eval.split > 0.0) sets.emplace_back("", config);
  for (const std::string& entry : config.eval.sets) {
    auto [name, files] = table_entry(entry);
    if (files.is_string()) files = Json::array({files});
    RunConfig& set = sets.emplace_back(name, config).second;
    set.eval.split = 0.0;
    set.data.eval.clear();
    for (const Json& file : files) {
      if (!files.is_array() || !file.is_string()) {
        throw ConfigError("eval.sets: " + name + ": expected a file or a list of files");
      }
      set.data.eval.push_back(file.get<std::string>());
    }
    if (set.data.eval.empty()) throw ConfigError("eval.sets: " + name + ": names no file");
    if (name.size() > kLongestSetName) {
      throw ConfigError("eval.sets: " + name + ": the name has " + std::to_string(name.size()) +
                        " bytes; files are named after it, so give it " +
                        std::to_string(kLongestSetName) + " at most");
    }
  }
  return sets;
}

SequenceData load_sequences(const RunConfig& config, const ModelSource& source, SequenceUse use,
                            const StopCheck& stop, Say say) {
  const bool training = use == SequenceUse::kTrain;
  const bool split = config.eval.split > 0.0;
  const bool from_training_files = training || split;
  const RunPreparation preparation(config, source.directory().path(), source.arch().vocabulary);
  const DataSection named = with_data_files(config.data);
  const std::vector<std::string>& paths = from_training_files ? named.train : named.eval;
  PreparedData prepared = preparation.run(paths, stop);
  check_loss(config, prepared.report);
  HoldOut hold_out{.fraction = config.eval.split, .seed = static_cast<uint64_t>(config.run.seed)};
  if (split) hold_out.part = training ? HoldOut::Part::kTrained : HoldOut::Part::kHeldOut;
  SequenceData data;
  combine_files(data, prepared, training ? named.weights : std::vector<double>{}, hold_out,
                training ? file_mix(config.data) : FileMix{});
  if (traits_of(config.train.loss).forward_first) {
    data.mismatched = std::make_unique<MismatchedDataset>(
        data.dataset.get(), config.train.sequences_per_step, config.data.max_tokens);
  }
  // The two answers of a pair are in one sequence, which is one sample.
  PackingOptions packing = packing_options(config.data, traits_of(config.train.loss).answers);
  packing.beside = data.mismatched.get();
  if (training && config.data.shuffle) {
    packing.shuffle_seed = static_cast<uint64_t>(config.run.seed);
  }
  data.table = make_sequences(*data.dataset, packing);
  data.dropout = training && source.whole().has_dropout();
  data.report = std::move(prepared.report);
  if (split) data.part = part_of(*data.dataset, !training, config.eval.split);
  const PrepareOptions used = preparation.options(paths);
  if (used.tokenizer != nullptr) data.tokenizer = used.tokenizer->fingerprint();
  if (used.chat != nullptr) data.chat = used.chat->fingerprint();
  const std::vector<FileReport>& reports = data.report.files;
  data.conversations = std::ranges::any_of(reports, [&](const FileReport& file) {
    return file.chat_prompts > 0 || holds_conversations(file.format, config.data);
  });
  // Prompts, completions and the answers of pairs may be messages too.
  const bool may_be_chat = std::ranges::any_of(reports, [](const FileReport& file) {
    return file.format != "text" && file.format != "tokens";
  });
  if (training && used.tokenizer != nullptr) data.ends = ends_of(*data.dataset, *used.tokenizer);
  if (training && may_be_chat) data.chat_template = template_to_export(config, used.chat);
  if (say == Say::kNone) return data;
  if (split && !training) {
    // The lines and warnings are about whole files, which the training data has named.
    if (say == Say::kSum) return data;
    log_info("held out for evaluation: " + format_count(data.part->documents) +
             (data.part->documents == 1 ? " document, " : " documents, ") +
             format_count(data.part->trained_tokens) + " trained tokens");
    return data;
  }
  if (say == Say::kSum) {
    log_info(lines_of(data.report.sum()).front());
  } else {
    for (const std::string& line : data.report.lines()) log_info(line);
    if (!data.mix.empty()) log_info(data.mix);
    const std::string packed = packed_rows_text(config, data);
    if (use == SequenceUse::kTrain && !packed.empty()) log_info(packed);
  }
  for (const std::string& warning : data.report.warnings()) log_warning(warning);
  if (training && config.train.loss == LossKind::kKto) warn_of_one_label(config, *data.dataset);
  return data;
}

std::string packed_rows_text(const RunConfig& config, const SequenceData& data) {
  const int64_t sequences = data.table.sequence_count(), step = config.train.sequences_per_step;
  if (!config.data.packing || sequences == 0) return "";
  const auto rows =
      static_cast<double>(data.dataset->document_count() / traits_of(config.train.loss).answers);
  const int64_t packed =
      std::llround(rows * static_cast<double>(step) / static_cast<double>(sequences));
  if (packed <= step) return "";
  return "a step has about " + format_count(packed) +
         (traits_of(config.train.loss).paired() ? " pairs" : " documents") +
         ": data.packing puts them into " + format_count(step) +
         (step == 1 ? " sequence" : " sequences");
}

std::vector<EvaluationSet> load_evaluation_sets(const RunConfig& config, const ModelSource& source,
                                                const StopCheck& stop, Say say) {
  std::vector<EvaluationSet> sets;
  for (const auto& [name, set] : evaluation_sets(config)) {
    sets.push_back({name, load_sequences(set, source, SequenceUse::kEvaluate, stop, say)});
  }
  return sets;
}

Json to_json(const SequenceData& data) {
  Json files = Json::array();
  for (const FileReport& report : data.report.files) {
    // A path relative to where the run was started would lose its meaning.
    const std::string path = std::filesystem::absolute(report.path).lexically_normal();
    Json file = {{"path", path}, {"xxh3", hash_text(report.content)}};
    file.update(to_json(report));
    files.push_back(std::move(file));
  }
  Json json = {{"sequences", data.table.sequence_count()},
               {"tokens", hash_text(data.dataset->fingerprint())},
               {"tokenizer", hash_text(data.tokenizer)},
               {"chat_template", hash_text(data.chat)},
               {"files", std::move(files)}};
  if (data.part) {
    json["part"] = {{"held_out", data.part->held_out},
                    {"eval_split", data.part->fraction},
                    {"documents", data.part->documents},
                    {"tokens", data.part->tokens},
                    {"trained_tokens", data.part->trained_tokens}};
  }
  if (data.ends.documents > 0) json["ends"] = to_json(data.ends);
  return json;
}

namespace {

// Returns the member of a set of data.json; null if it is missing.
Json member_of_set(const Json& sets, const std::string& set, const char* key) {
  const Json& found = sets.is_object() && sets.contains(set) ? sets[set] : Json();
  return found.is_object() && found.contains(key) ? found[key] : Json();
}

std::map<std::string, Json> evaluation_tokens(const Json& sets) {
  std::map<std::string, Json> tokens;
  if (!sets.is_object()) return tokens;
  for (const auto& [name, set] : sets.items()) {
    const Json found = member_of_set(sets, name, "tokens");
    if (name != "train" && !found.is_null()) tokens[name] = found;
  }
  return tokens;
}

}  // namespace

InputChanges changed_inputs(const Json& before, const Json& now) {
  InputChanges changes;
  const auto compare = [&](const char* key, const char* what) {
    const Json former = member_of_set(before, "train", key);
    if (former.is_null() || former == member_of_set(now, "train", key)) return;
    changes.warnings.push_back(
        std::string(what) +
        " is not the one that an earlier start of this run read (data.json); the training data "
        "has the same tokens with both, so the run goes on, and its exports have the one of now");
  };
  compare("tokenizer", "the tokenizer");
  compare("chat_template", "the chat template");
  const std::map<std::string, Json> former = evaluation_tokens(before);
  changes.evaluation = !former.empty() && former != evaluation_tokens(now);
  if (changes.evaluation) {
    changes.warnings.push_back(
        "the evaluation data is not what an earlier start of this run read (data.json): losses of "
        "before and after this start cannot be compared, and the search for the lowest one "
        "(eval.patience, eval.keep_best) begins anew");
  }
  return changes;
}

TrainingData::TrainingData(const RunConfig& config, SequenceData data)
    : data_(std::move(data)),
      sampler_({.seed = static_cast<uint64_t>(config.run.seed),
                .sequences = data_.table.sequence_count(),
                .shuffle = config.data.shuffle}),
      sequences_per_step_(config.train.sequences_per_step),
      micro_batch_(config.train.micro_batch.value()),
      seed_(static_cast<uint64_t>(config.run.seed)),
      train_(config.train),
      total_steps_(steps_of(train_)) {}

int64_t TrainingData::steps_of(const TrainSection& train) const {
  if (train.steps > 0) return train.steps;
  return base_step_.value +
         sampler_.steps_for(train.epochs, train.sequences_per_step, base_samples_);
}

std::string TrainingData::resume_at(Step step, const DataState& saved, const std::string& path) {
  const int64_t now = sequence_count();
  DataCursor cursor = saved.cursor;
  std::string note;
  if (saved.sequences > 0 && saved.sequences != now) {
    const double share =
        static_cast<double>(cursor.position) / static_cast<double>(saved.sequences);
    cursor.position = static_cast<int64_t>(share * static_cast<double>(now));
    note = path + ": an epoch had " + format_count(saved.sequences) + " sequences and has " +
           format_count(now) +
           " now (data.max_tokens, data.packing): the run continues at the same fraction of its "
           "epoch, where some text may be repeated or skipped";
  }
  const auto epochs = checked_multiply(cursor.epoch, now);
  if (cursor.position >= now || !epochs || *epochs > kMostSteps) {
    throw CheckpointError(path + ": epoch " + std::to_string(cursor.epoch) + ", position " +
                          std::to_string(cursor.position) + " is outside the data, which has " +
                          std::to_string(now) + " sequences");
  }
  base_step_ = step;
  base_samples_ = sampler_.samples_before(cursor);
  total_steps_ = steps_of(train_);
  return note;
}

int64_t TrainingData::samples_before(Step step) const {
  return base_samples_ + (step.value - base_step_.value) * sequences_per_step_;
}

StepSamples TrainingData::samples_of(Step step) const {
  return {.first_sample = samples_before(Step(step.value - 1)),
          .sequences = sequences_per_step_,
          .micro_batch = micro_batch_};
}

StepBatches TrainingData::step_batches(Step step, const RankShare& share) const {
  StepSamples samples = samples_of(step);
  if (data_.dropout) samples.dropout_seed = seed_;
  return make_step_batches(*data_.dataset, data_.table, sampler_, samples, share);
}

StepBatches TrainingData::mismatched_batches(Step step, const RankShare& share) const {
  return make_step_batches(*data_.mismatched, data_.table, sampler_, samples_of(step), share);
}

DataCursor TrainingData::cursor_after(Step step) const {
  return sampler_.cursor_after(samples_before(step));
}

double TrainingData::epochs_after(Step step) const {
  return sampler_.epochs_in(samples_before(step));
}

bool holds_conversations(std::string_view format, const DataSection& data) {
  return format == "messages" || (format == "prompt-completion" && data.prompt_template == "chat");
}

std::shared_ptr<const Loss> loss_of(const RunConfig& config) {
  PreferenceOptions options = config.preference;
  options.loss = config.train.loss;
  options.policy = config.policy;
  return make_loss(options);
}

double loss_terms(const StepBatches& batches, const Loss& loss) {
  if (!loss.traits().judged) return batches.weight;
  return static_cast<double>(batches.documents / loss.traits().answers);
}

void set_references(std::vector<Batch>& batches, const Objective& objective,
                    size_t first_reference) {
  if (objective.references.empty()) return;
  for (Batch& batch : batches) {
    for (const int64_t document : batch.documents()) {
      batch.columns.get<kReferenceLogpColumn>().push_back(
          objective.references.at(first_reference + static_cast<size_t>(document)));
    }
  }
}

void set_kl(std::vector<Batch>& batches, double kl) {
  for (Batch& batch : batches) batch.columns.get<kKlColumn>() = {kl};
}

}  // namespace longshore
