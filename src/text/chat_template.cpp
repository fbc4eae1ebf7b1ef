#include "text/chat_template.h"

#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/python_numbers.h"
#include "text/tokenizers_c_strings.h"

namespace longshore {
namespace {

namespace fs = std::filesystem;

// The longest published templates are about 20 KB.
constexpr Bytes kMaxTemplateBytes = 4 * kMiB;
constexpr Bytes kMaxConfigBytes = 16 * kMiB;

struct Sources {
  std::optional<std::string> ordinary, tool_use;
  std::string origin;
};

// A list of named templates: {"name": "tool_use", "template": "..."}.
void take_named(const Json& list, Sources& sources) {
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template") ||
        !entry["name"].is_string() || !entry["template"].is_string()) {
      throw DataError(sources.origin + ": chat_template: an entry has no name and template");
    }
    const std::string name = entry["name"].get<std::string>();
    if (name == "default") sources.ordinary = entry["template"].get<std::string>();
    if (name == "tool_use") sources.tool_use = entry["template"].get<std::string>();
  }
  if (!sources.ordinary) {
    throw DataError(sources.origin +
                    ": chat_template: none of its templates is named \"default\"; choose one and "
                    "give it as a file with data.chat_template");
  }
}

Sources find_sources(const fs::path& directory, const std::string& file) {
  Sources sources;
  std::error_code ignored;
  const fs::path own = directory / "chat_template.jinja";
  if (!file.empty() || fs::exists(own, ignored)) {
    sources.origin = file.empty() ? own.string() : file;
    sources.ordinary = read_whole_file(sources.origin, kMaxTemplateBytes);
    return sources;
  }
  const fs::path config_path = directory / "tokenizer_config.json";
  if (!fs::exists(config_path, ignored)) return sources;
  sources.origin = config_path.string();
  const Json config = parse_json(python_numbers(read_whole_file(sources.origin, kMaxConfigBytes)),
                                 {}, sources.origin);
  if (!config.is_object()) return sources;
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return sources;
  if (found->is_string()) {
    sources.ordinary = found->get<std::string>();
  } else if (found->is_array()) {
    take_named(*found, sources);
  } else {
    throw DataError(sources.origin + ": chat_template: expected a string");
  }
  return sources;
}

// transformers gives templates messages without the keys that are null.
Json without_nulls(const Json& messages) {
  Json kept = Json::array();
  for (const Json& message : messages) {
    if (!message.is_object()) {
      kept.push_back(message);
      continue;
    }
    Json copy = Json::object();
    for (const auto& [key, value] : message.items()) {
      if (!value.is_null()) copy[key] = value;
    }
    kept.push_back(std::move(copy));
  }
  return kept;
}

}  // namespace

void ChatTemplate::Free::operator()(tokc_chat* chat) const noexcept {
  tokc_chat_free(chat);
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate::Handle ChatTemplate::parse(const std::string& source, const Tokenizer& tokenizer,
                                         const std::string& date, const std::string& origin) {
  tokc_chat* handle = nullptr;
  tokc_string error{};
  if (tokc_chat_new(tokenizer.handle_.get(), slice_of(source), slice_of(date), &handle, &error) !=
      0) {
    throw DataError(origin + ": " + take(error));
  }
  return Handle(handle);
}

std::optional<ChatTemplate> ChatTemplate::load(const std::string& directory,
                                               const Tokenizer& tokenizer,
                                               const ChatTemplateOptions& options) {
  const Sources sources = find_sources(directory, options.file);
  if (!sources.ordinary) return std::nullopt;
  ChatTemplate chat = from_text(*sources.ordinary, tokenizer, options.date, sources.origin);
  if (sources.tool_use) {
    chat.tool_use_ = parse(*sources.tool_use, tokenizer, options.date, sources.origin);
    chat.fingerprint_ ^= hash64("tool_use" + *sources.tool_use);
  }
  return chat;
}

ChatTemplate ChatTemplate::from_text(const std::string& source, const Tokenizer& tokenizer,
                                     const std::string& date, const std::string& origin) {
  ChatTemplate chat;
  chat.default_ = parse(source, tokenizer, date, origin);
  chat.fingerprint_ = hash64(chat.uses_date() ? date + source : source);
  return chat;
}

const tokc_chat* ChatTemplate::chat_for(bool with_tools) const {
  return with_tools && tool_use_ ? tool_use_.get() : default_.get();
}

bool ChatTemplate::has_generation(bool with_tools) const {
  return tokc_chat_has_generation(chat_for(with_tools)) != 0;
}

bool ChatTemplate::uses_date() const {
  return tokc_chat_uses_date(default_.get()) != 0 ||
         (tool_use_ && tokc_chat_uses_date(tool_use_.get()) != 0);
}

RenderedChat ChatTemplate::render(const Json& messages, const ChatVariables& variables) const {
  Json context = variables.arguments;
  context["messages"] = without_nulls(messages);
  context["tools"] = variables.tools;
  context["add_generation_prompt"] = variables.add_generation_prompt;
  const std::string json = context.dump();
  tokc_rendered rendered{};
  tokc_string error{};
  if (tokc_chat_render(chat_for(!variables.tools.is_null()), slice_of(json), &rendered, &error) !=
      0) {
    throw ChatProblem(take(error));
  }
  RenderedChat chat;
  chat.text.assign(reinterpret_cast<const char*>(rendered.text.data), rendered.text.size);
  for (size_t i = 0; i < rendered.count; ++i) {
    chat.generated.push_back({rendered.generated[2 * i], rendered.generated[2 * i + 1]});
  }
  tokc_rendered_free(rendered);
  return chat;
}

}  // namespace longshore
