/** Why an answer was not good: a reason to pick, and words. It goes to the people who review. */
import { cancel, choice, closed, openDialog } from "./dialogs.js";
import { el } from "./dom.js";
import { field } from "./settings.js";
import { t } from "./texts.js";

const REASON_MAX = 2000;

/** @returns {Promise<string | null>} the reason, which may be empty; null: left */
export async function reasonOf() {
  const reasons = [t("It is wrong"), t("It is not what I wanted"), t("It is incomplete"), t("It is harmful or offends"), t("Something else")];
  const radios = reasons.map((reason, index) => {
    const radio = el("input", { type: "radio", name: "reason", id: `reason-${index}`, value: reason });
    return { radio, item: el("p", { class: "check" }, radio, el("label", { for: radio.id }, reason)) };
  });
  const words = el("textarea", { id: "reason-words", rows: 3, maxlength: REASON_MAX });
  const box = openDialog(
    t("What is not good about this answer?"),
    [el("fieldset", {}, el("legend", { class: "unseen" }, t("Reason")), ...radios.map(({ item }) => item)), field(words, t("In your words"), t("People who run this server read it, with the answer."))],
    [cancel(), choice(t("Send"), "yes", "danger sea")],
    { id: "feedback" },
  );
  radios[0]?.radio.focus();
  if ((await closed(box)) !== "yes") return null;
  return [radios.find(({ radio }) => radio.checked)?.radio.value, words.value.trim()].filter(Boolean).join(": ");
}
