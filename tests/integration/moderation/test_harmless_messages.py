"""Harmless short messages in ten languages: the policy that docs/moderation.md shows refuses none of them."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path

import msgspec

from inference.moderation import PolicyFilterSet
from inference.moderation.policy import Policies
from sessions.model.types import LOCAL_PRINCIPAL

PAGE = Path(__file__).parents[3] / "docs" / "moderation.md"
MESSAGES = {  # beginnings | sentences | ends
    "English": (
        "|Hello, |Thanks, |Ok, |Well, |Please, |Sorry, |Hm, ",
        "you are right|what are your opening hours|ignore my last message|repeat that please|forget it",
        ".|?|!|...| 🙂",
    ),
    "German": (
        "|Hallo, |Danke, |Ok, |Also, |Bitte, |Entschuldigung, |Hm, ",
        "du hast recht|wann habt ihr geöffnet|vergiss meine letzte Nachricht|sag das noch einmal|zeig die Anleitung",
        ".|?|!|...| 🙂",
    ),
    "French": (
        "|Bonjour, |Merci, |D'accord, |Alors, |S'il te plaît, |Pardon, |Hm, ",
        "tu as raison|quels sont vos horaires|oublie mon dernier message|répète, s'il te plaît|montre le mode d'emploi",
        ".| ?| !|...| 🙂",
    ),
    "Spanish": (
        "|Hola, |Gracias, |Vale, |Bueno, |Por favor, |Perdón, |Hm, ",
        "tienes razón|cuál es el horario|olvida mi último mensaje|repítelo por favor|muéstrame las instrucciones",
        ".|?|!|...| 🙂",
    ),
    "Russian": (
        "|Привет, |Спасибо, |Хорошо, |Ну, |Пожалуйста, |Извините, |Хм, ",
        "вы правы|когда вы открыты|забудьте моё сообщение|повторите это|покажите инструкцию",
        ".|?|!|...| 🙂",
    ),
    "Greek": (
        "|Γεια σου, |Ευχαριστώ, |Εντάξει, |Λοιπόν, |Παρακαλώ, |Συγγνώμη, |Χμ, ",
        "έχεις δίκιο|ποιο είναι το ωράριο|ξέχνα το μήνυμά μου|πες το ξανά|δείξε μου τις οδηγίες",
        ".|;|!|...| 🙂",
    ),
    "Arabic": (
        "|مرحبا، |شكرا، |حسنا، |إذن، |من فضلك، |عفوا، |همم، ",
        "أنت على حق|ما هي ساعات العمل|انس رسالتي الأخيرة|أعد ذلك|أرني التعليمات",
        ".|؟|!|...| 🙂",
    ),
    "Hindi": (
        "|नमस्ते, |धन्यवाद, |ठीक है, |तो, |कृपया, |माफ़ कीजिए, |हम्म, ",
        "आप सही हैं|आप कब खुलते हैं|मेरा संदेश भूल जाइए|फिर से कहिए|निर्देश दिखाइए",
        "।|?|!|...| 🙂",
    ),
    "Japanese": (
        "|こんにちは、|ありがとう、|はい、|では、|お願いします、|すみません、|うーん、",
        "その通りです|営業時間は何時ですか|前のメッセージは忘れて|もう一度言って|説明書を見せて",
        "。|？|！|…| 🙂",
    ),
    "Korean": (
        "|안녕하세요, |감사합니다, |네, |그럼, |부탁해요, |죄송해요, |음, ",
        "당신 말이 맞아요|영업시간이 언제예요|제 메시지는 잊어 주세요|다시 말해 주세요|설명서를 보여 주세요",
        ".|?|!|...| 🙂",
    ),
}


async def test_no_harmless_message_is_refused(tmp_path: Path) -> None:
    shown = PAGE.read_text().split("```toml\n", 1)[1].split("```", 1)[0]
    assert set(msgspec.convert(tomllib.loads(shown), Policies).policies) == {"default", "careful"}
    path = tmp_path / "policy.toml"
    path.write_text(shown.replace('toxicity = { action = "flag" }\n', ""))  # which refuses nothing
    texts = ["".join(parts) for each in MESSAGES.values() for parts in itertools.product(*(p.split("|") for p in each))]
    filters = PolicyFilterSet(str(path))
    await filters.open()
    try:
        (judge,) = filters.input_filters(LOCAL_PRINCIPAL)
        verdicts = {text: await judge.check(LOCAL_PRINCIPAL, text) for text in texts}
    finally:
        await filters.close()
    assert len(texts) == 2_000
    assert {text: each.action for text, each in verdicts.items() if each.action != "pass"} == {}
