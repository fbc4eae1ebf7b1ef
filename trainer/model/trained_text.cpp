#include "trainer/model/trained_text.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/errors.h"
#include "base/file.h"
#include "base/texts.h"
#include "hf/export_plan.h"
#include "hf/json_members.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostDocuments = 256;
constexpr int64_t kRarer = 20;  // an end token must close at least one in kRarer documents
constexpr Bytes kMostTemplateBytes = 4 * kMiB;
constexpr Bytes kMostTokenizerBytes = 256 * kMiB;
constexpr JsonLimits kDataLimits{.max_bytes = 64 * kMiB};

constexpr const char* kTemplateName = "chat_template.jinja";
constexpr const char* kGenerationName = "generation_config.json";
constexpr const char* kTokenizerConfigName = "tokenizer_config.json";

// Multimodal processors read this file first.
constexpr const char* kProcessorTemplate = "chat_template.json";

constexpr std::array kTokenizerFiles = {
    "tokenizer.json",     "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json",         "added_tokens.json",     "merges.txt",
    "vocab.txt",          "tokenizer.model",       "spiece.model",
    "chat_template.json", "chat_template.jinja"};

std::string named(const std::string& token, int64_t id) {
  return "'" + printable(token) + "' (" + std::to_string(id) + ")";
}

// Returns trained end tokens that are not end tokens of the model.
std::vector<TextEnd> new_ends(const TextEnds& ends, const std::vector<int64_t>& known) {
  std::vector<TextEnd> found;
  for (const TextEnd& end : ends.ends) {
    if (std::ranges::find(known, end.id) == known.end()) found.push_back(end);
  }
  return found;
}

bool has_file(const ModelDirectory& directory, const std::string& name) {
  const std::vector<std::string>& files = directory.companion_files();
  return std::ranges::find(files, name) != files.end();
}

// Returns a file of the model's directory as it was when the run began.
std::string text_of_companion(const ModelDirectory& directory, const std::string& name) {
  if (const std::string* text = directory.companion_text(name)) return *text;
  return read_to_end(directory.open_companion(name), kMostTokenizerBytes);
}

void leave_out_templates(const ModelDirectory& directory, ExportTexts& texts) {
  texts.left_out.insert(kProcessorTemplate);
  for (const std::string& name : directory.companion_files()) {
    if (name.starts_with(kTemplatesFolder)) texts.left_out.insert(name);
  }
}

// The run uses the tokenizer of another directory. The export leaves out the model's files, because
// that tokenizer encodes text differently.
void replace_tokenizer(const ModelSource& source, ExportTexts& texts) {
  leave_out_templates(source.directory(), texts);
  texts.left_out.insert(kTokenizerFiles.begin(), kTokenizerFiles.end());
  texts.lines.emplace_back(
      "The tokenizer is the one that the run was given, not the base model's.");
}

void put_template(const std::string& text, const ModelDirectory& directory, ExportTexts& texts) {
  leave_out_templates(directory, texts);
  std::erase_if(texts.files, [](const auto& file) {
    return file.first.starts_with(kTemplatesFolder) || file.first == kProcessorTemplate;
  });
  texts.files[kTemplateName] = without_generation_marks(text);
  // Programs that ignore chat_template.jinja would use the template in this file.
  const auto own = texts.files.find(kTokenizerConfigName);
  if (own != texts.files.end()) {
    own->second = without_member(own->second, "chat_template");
  } else if (has_file(directory, kTokenizerConfigName)) {
    const std::string config = text_of_companion(directory, kTokenizerConfigName);
    const std::string edited = without_member(config, "chat_template");
    if (edited != config) texts.files[kTokenizerConfigName] = edited;
  }
  texts.lines.emplace_back(
      "Conversations are written by chat_template.jinja, the template that was trained with.");
}

void put_ends(const TextEnds& ends, const ModelSource& source, ExportTexts& texts) {
  std::vector<int64_t> ids = end_tokens(source);
  const std::vector<TextEnd> trained = new_ends(ends, ids);
  if (trained.empty()) return;
  for (size_t i = trained.size(); i > 0; --i) ids.insert(ids.begin(), trained[i - 1].id);
  const std::string names =
      joined(trained, ", ", [](const TextEnd& end) { return named(end.token, end.id); });
  const std::string list = "[" + joined(ids, ", ") + "]";
  if (source.directory().generation_config() != nullptr) {
    texts.files[kGenerationName] =
        with_member(text_of_companion(source.directory(), kGenerationName), "eos_token_id", list);
  } else {
    std::string text = with_member("{}", "eos_token_id", list);
    // Without generation_config.json transformers takes these keys from config.json.
    for (const char* key : {"pad_token_id", "bos_token_id"}) {
      const auto found = source.directory().config().find(key);
      if (found == source.directory().config().end() || !found->is_number_integer()) continue;
      text = with_member(text, key, found->dump());
    }
    texts.files[kGenerationName] = text + "\n";
  }
  texts.lines.push_back("Texts were trained to end with " + names +
                        ", which ended none of the base model's: eos_token_id of "
                        "generation_config.json now names " +
                        (ids.size() > trained.size() ? "both" : "it") + ".");
}

}  // namespace

bool EndCounter::take_end(TokenId id) {
  const std::vector<TokenId>& stops = tokenizer_->stop_ids();
  if (!tokenizer_->is_special(id) && std::ranges::find(stops, id) == stops.end()) return false;
  ++counts_[id];
  return true;
}

TextEnds EndCounter::ends() const {
  TextEnds found = ends_;
  for (const auto& [id, documents] : counts_) {
    if (documents * kRarer < found.documents) continue;
    found.ends.push_back({id, tokenizer_->token_of(id).value_or(""), documents});
  }
  std::ranges::stable_sort(found.ends, std::ranges::greater{}, &TextEnd::documents);
  return found;
}

TextEnds ends_of(const Dataset& data, const Tokenizer& tokenizer) {
  EndCounter counter(&tokenizer);
  const int64_t documents = data.document_count();
  const int64_t looked_at = std::min(documents, kMostDocuments);
  std::vector<int64_t> tokens, targets;
  for (int64_t i = 0; i < looked_at; ++i) {
    tokens.clear();
    targets.clear();
    data.append_document(i * documents / looked_at, tokens, targets);
    counter.take(std::span<const int64_t>(targets));
  }
  return counter.ends();
}

Json to_json(const TextEnds& ends) {
  Json list = Json::array();
  for (const TextEnd& end : ends.ends) {
    list.push_back({{"id", end.id}, {"token", end.token}, {"documents", end.documents}});
  }
  return {{"documents", ends.documents}, {"without", ends.without}, {"tokens", std::move(list)}};
}

TextEnds text_ends_of(const Json& object) {
  TextEnds ends;
  try {
    ends.documents = object.at("documents").get<int64_t>();
    ends.without = object.at("without").get<int64_t>();
    for (const Json& end : object.at("tokens")) {
      ends.ends.push_back({end.at("id").get<int64_t>(), end.at("token").get<std::string>(),
                           end.at("documents").get<int64_t>()});
    }
  } catch (const Json::exception&) {
    return {};
  }
  return ends;
}

std::vector<int64_t> end_tokens(const ModelSource& source) {
  const Json* const generation = source.directory().generation_config();
  if (generation == nullptr) return source.arch().eos_tokens;
  const auto found = generation->find("eos_token_id");
  std::vector<int64_t> ids;
  if (found == generation->end()) return ids;
  for (const Json& id : found->is_array() ? *found : Json::array({*found})) {
    if (!id.is_number_integer()) continue;
    const auto value = id.get<int64_t>();
    if (std::ranges::find(ids, value) == ids.end()) ids.push_back(value);
  }
  return ids;
}

std::vector<std::string> end_notes(const TextEnds& ends, bool conversations,
                                   const ModelSource& source) {
  std::vector<std::string> notes;
  const std::vector<int64_t> known = end_tokens(source);
  const bool of_generation = source.directory().generation_config() != nullptr;
  const std::string file = of_generation ? kGenerationName : "config.json";
  for (const TextEnd& end : new_ends(ends, known)) {
    notes.push_back("texts are trained to end with " + named(end.token, end.id) +
                    ", and the model ends them with eos_token_id = " + "[" + joined(known, ", ") +
                    "] (" + source.directory().path_of(file) +
                    "): generation_config.json of the export will name both, so that the served "
                    "model stops");
  }
  if (conversations && 2 * ends.without > ends.documents) {
    notes.push_back(
        format_count(ends.without) + " of " + format_count(ends.documents) +
        " documents are not trained to end: no special token of the tokenizer stands at the end of "
        "what is trained, so the served model will not stop; let the chat template "
        "(data.chat_template) end answers with one, inside of its {% generation %} block if it has "
        "them");
  }
  return notes;
}

std::map<std::string, std::string> read_tokenizer_files(const std::string& directory) {
  std::map<std::string, std::string> files;
  std::error_code ignored;
  const auto take = [&](const std::string& name) {
    const std::string path = directory + "/" + name;
    if (!fs::is_regular_file(path, ignored)) return;
    files[name] = read_whole_file(path, kMostTokenizerBytes);
  };
  for (const char* name : kTokenizerFiles) take(name);
  const std::string folder = kTemplatesFolder;
  for (const auto& entry : fs::directory_iterator(directory + "/" + folder, ignored)) {
    take(folder + "/" + entry.path().filename().string());
  }
  return files;
}

std::string template_to_export(const RunConfig& config, const ChatTemplate* chat) {
  const std::string& asked = config.data.chat_template;
  if (chat == nullptr || asked == "auto" || asked == "training") return {};
  return chat->text();
}

void add_trained_text(const RunConfig& config, const ModelSource& source,
                      const std::string& run_directory, ExportTexts& texts) {
  for (const auto& [name, text] : source.tokenizer_files()) texts.files[name] = text;
  if (config.tokenizer.path != "auto") replace_tokenizer(source, texts);
  if (const std::vector<AddedTokens::Token>& fresh = source.tokens().fresh(); !fresh.empty()) {
    texts.lines.push_back(
        "The tokenizer has tokens that the base model's lacks: " +
        joined(fresh, ", ",
               [](const AddedTokens::Token& token) { return named(token.text, token.id); }) +
        ".");
  }
  std::error_code ignored;
  const std::string kept = run_directory + "/" + kTemplateName;
  if (fs::exists(kept, ignored)) {
    put_template(read_own_file(kept, kMostTemplateBytes), source.directory(), texts);
  }
  const std::string data = run_directory + "/data.json";
  if (!fs::exists(data, ignored)) return;
  const Json record = parse_json(read_own_file(data, kDataLimits.max_bytes), kDataLimits, data);
  if (!record.is_object() || !record.contains("train")) return;
  const Json& train = record["train"];
  if (train.is_object() && train.contains("ends")) {
    put_ends(text_ends_of(train["ends"]), source, texts);
  }
}

}  // namespace longshore
