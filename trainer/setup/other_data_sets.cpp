// The data sets that a file of Axolotl, LLaMA-Factory or TRL names.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/texts.h"
#include "config/toml_document.h"
#include "trainer/setup/other_findings.h"

namespace longshore {
namespace {

constexpr JsonLimits kLimits{.max_bytes = 16 * kMiB, .max_depth = 16};
constexpr const char* kUnknown = "`init --from` does not know this key";
constexpr const char* kToldByMembers =
    "the form of the rows is told by their members (data.format = \"auto\"); check data shows what "
    "is trained";
constexpr const char* kUsualNames =
    "the usual names of members and roles are known; check data shows the rows";
constexpr const char* kAllRows =
    "all rows are read; a number below 1 in data.weights takes a part of a file";

// EntryKey: a key of an entry of `datasets` that has no key in the run file. `usual` are the values
// with which a run here is the same, as JSON with spaces between them.
struct EntryKey {
  std::string_view name, usual;
  bool needless;
  const char* why;
};
constexpr EntryKey kEntryKeys[] = {
    {"chat_template", "\"tokenizer_default\"", false,
     "one template writes the messages of all data: the model's own, or data.chat_template"},
    {"columns", "", false, kUsualNames},
    {"conversation", "", false, kToldByMembers},
    {"data_dir", "", false, "it is not read; name the files with --data"},
    {"drop_system_message", "false", false, "the rows keep their system messages"},
    {"ds_type", "", true, "the form of a file follows from its name"},
    {"field_human", "", false, kUsualNames},
    {"field_model", "", false, kUsualNames},
    {"field_thinking", "\"reasoning_content\" \"thinking\" \"reasoning\"", false,
     "thoughts are read from reasoning_content, thinking or reasoning; rename the member"},
    {"input_format", "", false, kToldByMembers},
    {"input_transform", "", false, kToldByMembers},
    {"logprobs_field", "", false, "distillation is train.loss = \"distill\"; docs/distill.md"},
    {"max_completion_length", "", false, "a prompt and its answer together have data.max_tokens"},
    {"message_field_content", "\"content\" \"value\"", false, kUsualNames},
    {"message_field_role", "\"role\" \"from\"", false, kUsualNames},
    {"message_field_training", "\"train\" \"training\" \"loss\" \"weight\"", false,
     "an answer without a loss has \"train\": false, \"training\": false, \"loss\": false or the "
     "weight 0 (docs/data.md); rename the member"},
    {"message_field_training_detail", "", false,
     "a part of an answer cannot be chosen; \"train\": false leaves a whole answer out"},
    {"message_property_mappings", "", false, kUsualNames},
    {"preprocess_shards", "", true, "rows are tokenised once and kept in data.cache"},
    {"revision", "", false, "the data set is read as it is in the local Hugging Face cache"},
    {"roles", "", false, kUsualNames},
    {"roles_to_train", "[\"assistant\"] [\"gpt\",\"assistant\"] [\"assistant\",\"gpt\"]", false,
     "the assistant's messages are trained, no others; data.mask = \"all\" trains every token"},
    {"shards", "", false, kAllRows},
    {"shards_idx", "", false, kAllRows},
    {"skip", "0", false, kAllRows},
    {"split_thinking", "false", false,
     "a thought in the text of an answer is what the chat template makes of it; give it in "
     "reasoning_content"},
    {"step_separator", "", false, kToldByMembers},
    {"temperature", "", false, "distillation is train.loss = \"distill\"; docs/distill.md"},
    {"template_thinking_key", "\"reasoning_content\"", false,
     "the chat template gets thoughts as reasoning_content"},
    {"train_on_eos", "\"turn\"", false,
     "the end of each trained answer has a loss, and no other end has one"},
    {"train_on_eot", "\"turn\"", false,
     "the end of each trained answer has a loss, and no other end has one"},
    {"train_on_last_step_only", "false", false, "the answers alone are trained (data.mask)"},
    {"trust_remote_code", "", true, "data is read by the program, without Python code of its own"},
};

// Returns the hub id with its configuration and split, as data.train names it.
std::string hub_id(const std::string& id, const std::string& config, const std::string& split) {
  if (!config.empty()) return id + ":" + config + ":" + (split.empty() ? "train" : split);
  return split.empty() || split == "train" ? id : id + ":" + split;
}

bool is_local(const std::string& path) {
  std::error_code ignored;
  const std::string extension = std::filesystem::path(path).extension().string();
  return path.starts_with(".") || path.starts_with("/") || path.starts_with("~") ||
         extension == ".json" || extension == ".jsonl" || extension == ".parquet" ||
         extension == ".txt" || std::filesystem::exists(path, ignored);
}

// Returns whether the JSON text of the value is among the words of `usual`.
bool is_usual(const Json& value, std::string_view usual) {
  const std::string text = " " + value.dump() + " ";
  return (" " + std::string(usual) + " ").find(text) != std::string::npos;
}

class DataSetReader {
 public:
  DataSetReader(const Json& file, std::string directory)
      : file_(file), directory_(directory.empty() ? "data" : std::move(directory)) {}

  OtherDataSets read(const std::vector<std::string>& given) {
    // The other trainers' own order of rank: a list of entries, or a name.
    if (const Json* sets = in_.take("datasets")) read_entries("datasets", *sets, found_.train);
    if (const Json* sets = in_.take("pretraining_dataset")) {
      read_entries("pretraining_dataset", *sets, found_.train);
      in_.left("pretraining_dataset", "the data is read whole, shuffled, instead of as a stream");
    }
    if (const Json* name = in_.take("dataset")) read_names("dataset", *name, found_.train);
    if (const Json* name = in_.take("dataset_name")) read_hub_name(*name);
    if (const Json* sets = in_.take("test_datasets")) {
      read_entries("test_datasets", *sets, found_.eval);
    }
    if (const Json* name = in_.take("eval_dataset")) read_names("eval_dataset", *name, found_.eval);
    if (const Json* field = in_.take("dataset_text_field")) {
      if (field->is_string() && *field != "text") keys_["text"] = field->get<std::string>();
    }
    if (!given.empty()) {
      found_.train = given;
      found_.refused.clear();  // all of them are about data that is replaced
    } else if (found_.train.empty() && found_.refused.empty()) {
      in_.refuse("datasets", "it names no data that can be found; name the files with --data");
    }
    read_mix();
    for (const auto& [member, name] : keys_) {
      found_.keys += (found_.keys.empty() ? "{ " : ", ") + member + " = " + quote_toml(name);
    }
    if (!keys_.empty()) found_.keys += " }";
    return std::move(found_);
  }

 private:
  // Members have one name in all files of a run.
  void set_key(const std::string& place, const std::string& member, const std::string& name) {
    if (name.empty()) return;
    const auto [entry, added] = keys_.emplace(member, name);
    if (added || entry->second == name) return;
    in_.left(place, "its rows name " + member + " \"" + printable(name, 40) +
                        "\", those of another data set \"" + printable(entry->second, 40) +
                        "\"; data.keys has one name");
  }

  // Axolotl's and TRL's entries: {path, name, split, data_files, type, ...}.
  void read_entries(const std::string& key, const Json& value, std::vector<std::string>& paths) {
    const Json list = value.is_array() ? value : Json::array({value});
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string place = key + "[" + std::to_string(i) + "]";
      if (list[i].is_string()) {
        paths.push_back(list[i].get<std::string>());
      } else if (list[i].is_object() && !member_text(list[i], "path").empty()) {
        read_entry(place, list[i], paths);
      } else {
        in_.refuse(place, "expected a data set with a path");
      }
    }
  }

  void read_entry(const std::string& place, const Json& entry, std::vector<std::string>& paths) {
    read_place(place, entry, paths);
    read_type(place, entry);
    set_key(place, "text", member_text(entry, "text_column"));
    if (const std::string field = member_text(entry, "field"); !field.empty()) {
      if (entry.value("type", Json()) == "completion") {
        set_key(place, "text", field);
      } else {
        in_.needless(place + ".field", "it counts for type: completion alone");
      }
    }
    const std::string messages = member_text(entry, "field_messages");
    if (messages != "messages" && messages != "conversations") {
      set_key(place, "messages", messages);
    }
    if (const std::string tools = member_text(entry, "field_tools"); tools != "tools") {
      set_key(place, "tools", tools);
    }
    set_key(place, "chosen", member_text(entry, "field_chosen"));
    set_key(place, "rejected", member_text(entry, "field_rejected"));
    if (const std::string jinja = member_text(entry, "chat_template_jinja"); !jinja.empty()) {
      read_jinja(place + ".chat_template_jinja", jinja, in_);
    }
    constexpr std::array<std::string_view, 13> kRead = {
        "path",         "split",       "data_files",     "name",
        "type",         "text_column", "field",          "field_messages",
        "field_chosen", "field_tools", "field_rejected", "chat_template_jinja",
        "fraction"};
    for (const auto& [name, value] : entry.items()) {
      if (std::ranges::find(kRead, name) == kRead.end()) read_other(place, name, value);
    }
  }

  // The shares of the data sets in an epoch: LLaMA-Factory's strategies are those of
  // datasets.interleave_datasets, and TRL's fractions mix as the first of them does.
  void read_mix() {
    const std::string strategy = in_.text("mix_strategy");
    const Json* const probabilities = in_.take("interleave_probs");
    const bool under = strategy == "interleave_under", over = strategy == "interleave_over";
    if (under || over) {
      if (found_.train.size() < 2) return needless_mix("there is one data set");
      if (probabilities != nullptr) set_shares("interleave_probs", numbers_of(*probabilities));
      return in_.set("data.mix", under ? "\"exhaust\"" : "\"restart\"");
    }
    if (strategy == "interleave_once") {
      const char* const why = "each row is read once in an epoch";
      if (!in_.flag("disable_shuffling")) return needless_mix(why);
      return in_.left("mix_strategy", std::string(why) + ", one file after the other");
    }
    if (!strategy.empty() && strategy != "concat") {
      in_.left("mix_strategy", "`init --from` does not know this value", "data.mix");
    }
    if (probabilities != nullptr) {
      in_.left("interleave_probs", "it has no effect without mix_strategy", "data.probabilities");
    }
    read_fractions();
  }

  void needless_mix(const char* why) {
    for (const char* name : {"mix_strategy", "interleave_probs"}) {
      if (in_.has(name)) in_.needless(name, why);
    }
  }

  void read_fractions() {
    const auto sets = file_.find("datasets");
    if (sets == file_.end() || !sets->is_array()) return;
    Json fractions = Json::array();
    for (const Json& entry : *sets) {
      if (!entry.is_object() || !entry.contains("fraction")) continue;
      if (!entry["fraction"].is_null()) fractions.push_back(entry["fraction"]);
    }
    if (fractions.empty()) return;
    const char* const key = "datasets[].fraction";
    if (found_.train.size() < 2) return in_.needless(key, "there is one data set");
    in_.set("data.mix", "\"exhaust\"");
    set_shares(key, numbers_of(fractions));
  }

  void set_shares(const std::string& key, const std::vector<double>& shares) {
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    const auto usable = [](double share) { return share > 0.0 && std::isfinite(share); };
    if (shares.size() != found_.train.size() || !std::ranges::all_of(shares, usable)) {
      return in_.refuse(key,
                        "expected a number above 0 for each of the " +
                            std::to_string(found_.train.size()) +
                            " files and ids in data.train; give them with --data.probabilities",
                        "data.probabilities");
    }
    in_.set("data.probabilities", "[" + joined(shares, ", ", [sum](double share) {
                                    return toml_real(share / sum);
                                  }) + "]");
  }

  // Returns the numbers of a list, of a text with commas, or one; 0 for what is no number.
  static std::vector<double> numbers_of(const Json& value) {
    std::vector<double> numbers;
    if (value.is_array()) {
      for (const Json& number : value) numbers.push_back(number_of(number).value_or(0.0));
    } else if (value.is_string()) {
      for (const std::string& text : texts_of(value)) {
        numbers.push_back(number_of(text).value_or(0.0));
      }
    } else {
      numbers.push_back(number_of(value).value_or(0.0));
    }
    return numbers;
  }

  // Where the rows are.
  void read_place(const std::string& place, const Json& entry, std::vector<std::string>& paths) {
    const std::string path = member_text(entry, "path"), split = member_text(entry, "split");
    const std::string name = member_text(entry, "name");
    if (split.find('[') != std::string::npos) {
      in_.left(place + ".split", "it is a part of a split; the whole split is read");
    }
    std::vector<std::string> files;
    if (entry.contains("data_files")) files = texts_of(entry["data_files"]);
    if (files.empty() && !is_local(path)) {
      paths.push_back(hub_id(path, name, split.substr(0, split.find('['))));
      return;
    }
    std::error_code ignored;
    const bool inside = std::filesystem::is_directory(path, ignored);
    for (const std::string& file : files) paths.push_back(inside ? path + "/" + file : file);
    if (files.empty()) paths.push_back(path);
    const char* const whole = "a file is read whole, and has no configuration";
    if (!name.empty()) in_.needless(place + ".name", whole);
    if (!split.empty() && split != "train" && split.find('[') == std::string::npos) {
      in_.needless(place + ".split", whole);
    }
  }

  // A key of an entry that has no key in the run file.
  void read_other(const std::string& place, const std::string& name, const Json& value) {
    if (value.is_null() || value == "") return;
    const auto* known = std::ranges::find(kEntryKeys, name, &EntryKey::name);
    const std::string key = place + "." + printable(name, 40);
    if (known == std::end(kEntryKeys)) return in_.left(key, kUnknown);
    if (is_usual(value, known->usual)) {
      return in_.needless(key, "a run of Longshore does the same");
    }
    known->needless ? in_.needless(key, known->why) : in_.left(key, known->why);
  }

  void read_type(const std::string& place, const Json& entry) {
    const auto type = entry.find("type");
    if (type == entry.end() || type->is_null()) return;
    if (type->is_object()) return read_own_type(place + ".type", *type);
    const std::string name = type->is_string() ? type->get<std::string>() : "";
    if (name == "alpaca") {
      found_.prompt_template = "alpaca";
      return;
    }
    if (name == "completion" || name.starts_with("chat_template") || name.starts_with("sharegpt")) {
      return in_.needless(place + ".type = " + printable(name, 40),
                          "rows of messages and of text are told by their members");
    }
    if (name.find('.') != std::string::npos) {
      return in_.left(place + ".type = " + printable(name, 40),
                      "the form of the rows is told by their members, and the model's own chat "
                      "template writes their messages; check data shows the rows");
    }
    in_.left(place + ".type = " + printable(name, 40), kToldByMembers);
  }

  // Axolotl's own form of prompts: names of the members, and a text with {instruction}, {input}.
  void read_own_type(const std::string& place, const Json& type) {
    std::set<std::string> read = {"format"};
    for (const auto& [theirs, ours] :
         {std::pair("field_instruction", "prompt"), std::pair("field_prompt", "prompt"),
          std::pair("field_chosen", "chosen"), std::pair("field_rejected", "rejected"),
          std::pair("field_input", "context"), std::pair("field_output", "completion"),
          std::pair("field_completion", "completion"), std::pair("field_label", "label")}) {
      read.insert(theirs);
      set_key(place, ours, member_text(type, theirs));
    }
    std::string form = member_text(type, "format");
    for (const auto& [theirs, ours] :
         {std::pair("{instruction}", "{prompt}"), std::pair("{input}", "{context}")}) {
      const std::string name = theirs;
      for (size_t at = form.find(name); at != std::string::npos; at = form.find(name, at + 1)) {
        form.replace(at, name.size(), ours);
      }
    }
    found_.prompt_template = form;
    for (const auto& [name, value] : type.items()) {
      if (read.contains(name) || value.is_null() || value == "") continue;
      in_.left(place + "." + printable(name, 40),
               "data.prompt_template is one text, with {prompt} and {context}");
    }
  }

  // LLaMA-Factory's names, which dataset_info.json explains.
  void read_names(const std::string& key, const Json& value, std::vector<std::string>& paths) {
    const std::string info = directory_ + "/dataset_info.json";
    std::error_code ignored;
    Json known = Json::object();
    if (std::filesystem::exists(info, ignored)) {
      known = parse_json(read_input(info, kLimits.max_bytes), kLimits, info);
    }
    for (const std::string& name : texts_of(value)) {
      if (is_local(name)) {
        paths.push_back(name);
      } else if (known.is_object() && known.contains(name) && known[name].is_object()) {
        read_named(key + " " + printable(name, 40), known[name], paths);
      } else {
        in_.refuse(key + " " + printable(name, 40),
                   info + (known.empty() ? " is not here" : " does not name it") +
                       "; name the files with --data");
      }
    }
  }

  void read_named(const std::string& place, const Json& set, std::vector<std::string>& paths) {
    const std::string file = member_text(set, "file_name"), id = member_text(set, "hf_hub_url");
    if (!file.empty()) {
      paths.push_back(directory_ + "/" + file);
    } else if (!id.empty()) {
      paths.push_back(hub_id(id, member_text(set, "subset"), member_text(set, "split")));
    } else {
      return in_.refuse(place,
                        "it is neither a file nor a data set of the hub; name the files with "
                        "--data");
    }
    const bool conversations =
        member_text(set, "formatting") == "sharegpt" || member_text(set, "formatting") == "openai";
    const bool named = file_.contains("template");  // the converter asks for the chat template
    if (!conversations && !named) {
      in_.left(place,
               "LLaMA-Factory writes rows of prompts by its chat template; here "
               "data.prompt_template says how they are written, and rows of messages are written "
               "by the chat template");
    }
    for (const auto& [name, value] : set.items()) {
      if (value.is_null()) continue;
      const std::string key = place + " " + printable(name, 40);
      if (name == "num_samples") in_.left(key, "all rows are read");
      if (name == "tags") in_.left(key, kUsualNames);
      if (name == "columns") read_columns(place, value);
      if (name == "folder" || name == "script_url" || name == "cloud_file_name") {
        in_.left(key, "it is not read; name the files with --data");
      }
    }
  }

  void read_columns(const std::string& place, const Json& columns) {
    if (!columns.is_object()) return;
    constexpr std::pair<std::string_view, const char*> kColumns[] = {
        {"prompt", "prompt"}, {"query", "context"},   {"response", "completion"},
        {"system", "system"}, {"history", "history"}, {"messages", "messages"},
        {"tools", "tools"},   {"chosen", "chosen"},   {"rejected", "rejected"},
        {"kto_tag", "label"}};
    for (const auto& [theirs, value] : columns.items()) {
      if (!value.is_string() || value == "") continue;
      const std::string name = value.get<std::string>();
      const auto* known =
          std::ranges::find(kColumns, theirs, &std::pair<std::string_view, const char*>::first);
      if (known != std::end(kColumns)) {
        const bool usual = name == known->second || name == "conversations" || name == "kto_tag";
        if (!usual) set_key(place, known->second, name);
      } else {
        in_.left(place + " " + printable(theirs, 40), "it is not read");
      }
    }
  }

  // TRL's dataset_name with its configuration and splits.
  void read_hub_name(const Json& name) {
    const std::string path = name.is_string() ? name.get<std::string>() : "";
    const std::string config = in_.text("dataset_config"), split = in_.text("dataset_train_split");
    const std::string held_out = in_.text("dataset_test_split");
    if (path.empty()) return in_.refuse("dataset_name", "expected a path or an id");
    found_.train.push_back(is_local(path) ? path : hub_id(path, config, split));
    const std::string evaluated = member_text(file_, "eval_strategy");
    const bool evaluates = !evaluated.empty() && evaluated != "no" && !is_local(path);
    if (evaluates) {
      found_.eval.push_back(hub_id(path, config, held_out.empty() ? "test" : held_out));
    } else if (!held_out.empty()) {
      in_.needless("dataset_test_split", "the file asks for no evaluations");
    }
  }

  const Json& file_;
  std::string directory_;
  OtherDataSets found_;
  OtherReader in_{file_, found_};
  std::map<std::string, std::string> keys_;
};

}  // namespace

void read_jinja(const std::string& key, const std::string& jinja, OtherReader& in) {
  if (jinja.find("{%") == std::string::npos && jinja.find("{{") == std::string::npos) {
    in.set("data.chat_template", quote_toml(jinja));
  } else {
    in.left(key, "it is the text of a template; write it to a file for data.chat_template",
            "data.chat_template");
  }
}

OtherDataSets read_other_data_sets(const Json& file, const std::vector<std::string>& given,
                                   const std::string& dataset_directory) {
  return DataSetReader(file, dataset_directory).read(given);
}

}  // namespace longshore
