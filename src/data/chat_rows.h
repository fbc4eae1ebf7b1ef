// The row formats with answers, which are conversations and prompts with completions.
// Internal to src/data; the formats are immutable, any thread.
#pragma once

#include <memory>

#include "data/row_format.h"

namespace longshore {

// Conversation: a row in the form that chat templates read.
struct Conversation {
  Json messages = Json::array();    // role, content, tool_calls, ...
  Json tools = nullptr;             // an array, or null
  Json arguments = Json::object();  // chat_template_kwargs of the row
};

// Returns the member with a row's messages: messages, conversations, conversation, or chosen for a
// preference pair. Returns "messages" if there is none.
std::string name_of_messages(const Json& row, const RowFormatOptions& options);

// Reads {"messages": [...], "tools": [...]} in OpenAI's form, or {"conversations": [{"from",
// "value"}]} in ShareGPT's. A RowProblem names the faulty member. `notes` get the members of
// messages that neither this code nor the template reads.
Conversation read_conversation(const Json& row, const RowFormatOptions& options,
                               RowNotes* notes = nullptr);

// Returns the members that a row may have beside its messages.
std::vector<std::string> members_of_conversations(const RowFormatOptions& options);

// Returns the samples of a conversation. Throws RowProblem if it cannot be trained as `mask` says.
std::vector<Document> encode_conversation(const Conversation& conversation,
                                          const RowFormatOptions& options, ChatMask mask,
                                          RowNotes* notes);

// Returns whether the texts of a prompt and its answer become messages of a conversation: with
// data.prompt_template = "chat", and with "auto" if there is a chat template and the row has
// Alpaca's names, which `instruction` says. These rows of "auto" are noted.
bool by_chat_template(const RowFormatOptions& options, bool instruction, RowNotes* notes);

// Returns the text of a prompt by data.prompt_template, which is none of the chat template.
// `instruction`: the row has Alpaca's names.
std::string fill_prompt(const std::string& prompt, const std::string& context, bool instruction,
                        const RowFormatOptions& options);

std::unique_ptr<RowFormat> make_messages_format(const RowFormatOptions& options);
std::unique_ptr<RowFormat> make_prompt_format(const RowFormatOptions& options);

// PreferenceRows: the row formats with answers that people judged: pairs of a chosen and a rejected
// one, and single answers with a label. Internal to src/data; the formats are immutable, any
// thread.

// Returns true if the row has a chosen and a rejected answer, as texts, messages or token ids.
bool holds_pair(const Json& row, const RowFormatOptions& options);

// Returns true if the row has one answer with a label, as text, messages or token ids.
bool holds_judged_answer(const Json& row, const RowFormatOptions& options);

// Every row gives a document for each answer, behind the prompt: with `paired` those of the chosen
// and of the rejected one. Throws DataError if data.mask selects other tokens than the answers'.
std::unique_ptr<RowFormat> make_preference_format(const RowFormatOptions& options, bool paired);

}  // namespace longshore
