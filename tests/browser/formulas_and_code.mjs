/** Made-up formulas and blocks of code, faulty and bottomless ones among them, for documents.mjs and prose.test.mjs. */

const MATHS = [
  "x", "a_1", "x^2", "\\alpha", "\\frac{a}{b}", "\\sqrt[3]{x}", "\\sum_{i=1}^n i", "\\int_0^1 f(x)\\,dx", "\\left(\\frac12\\right)", "\\begin{pmatrix}a&b\\\\c&d\\end{pmatrix}",
  "\\begin{cases}1&x>0\\\\0&\\text{else}\\end{cases}", "\\begin{align}a&=b\\\\&=c\\end{align}", "\\mathbb{R}", "\\vec{v}", "\\lim_{x\\to0}", "f'(x)", "5", "=", "+", "\\hat{y}_i", "n!",
];
const TORN = [
  "\\frac{", "{", "}", "^", "_", "\\left(", "\\right)", "\\begin{matrix}", "\\end{matrix}", "&", "\\\\", "\\sqrt[", "]", "\\unknown", "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\text{", "'", "%", "\\over ", "\\hat",
  "#", "~", "\\", "\\sqrt{", "x^", "{x}", "\\frac", "\\href{javascript:intrude()}{x}", "\\def\\a{\\a\\a}\\a", "\\html{<img src=x onerror=intrude()>}", "\\text{<script>intrude()</script>}", "\\class{x}{y}",
  "\\includegraphics{//a.example/x}", "\\unicode{<}", "\\style{}{}", "\\text{if }$x$",
];
const LANGUAGES = [
  "js", "ts", "python", "java", "c", "cpp", "cs", "go", "rust", "rb", "sh", "sql", "json", "html", "xml", "css", "yaml", "toml", "diff", "kotlin", "", "none", "constructor", "__proto__",
];
const CODE = [
  "def f(x):\n    return x + 1", "class A extends B {", "}", "// comment", "# comment", "/* open", "*/", "'string'", '"open', "`template ${x}", '"""', "'''", "<<EOF", "EOF", '<div class="a">', "</div>", "<!--", "-->",
  "SELECT * FROM t WHERE a = 'b'", "const x = /re\\/[/]/g;", "@decorator", '{"key": [1, 2.5e3, true]}', "- item: &a value", "+ added", "@@ -1 +1 @@", "fn main() -> Result<(), E> {", 'if [ -z "$A" ]; then',
  'r#"raw"#', "((((", "}}}}", "\\", "\t", "", "%w(a b)", 'f"{x!r:>{w}}"', "a { color: #fff; }", 'key = "value"', 'R"x(', "#include <x>", "=begin", "<?xml", "<script>", "&amp;", "${", "$(", "func (s *T) F() {", "'a' + \"b\"",
];

/** @param {{ below: (count: number) => number, pick: <T>(list: T[]) => T }} random @param {(count: number) => string} words */
export function formula(random, words) {
  const several = (list, most) => Array.from({ length: 1 + random.below(most) }, () => random.pick(list)).join(random.pick(["", " "]));
  return random.pick([
    () => `${words(3)} $${several(MATHS, 4)}$ ${words(2)} \\(${several(MATHS, 6)}\\)`,
    () => `$$\n${several(MATHS, 12)}\n$$`,
    () => `\\[ ${several(MATHS, 12)} \\]`,
    () => `${words(2)}\n$$${several([...MATHS, ...TORN], 20)}$$`,
    () => random.pick(["$", "$$", "\\(", "\\[", "$$\n"]) + several(TORN, 3).repeat(1 + random.below(400)) + random.pick(["$", "$$", "\\)", "\\]", "\n$$", ""]),
    () => `| $${several(MATHS, 3)}$ | b |\n|-|-|\n${`| $${several(MATHS, 3)}$ | \\(x\\) |\n`.repeat(1 + random.below(40))}`,
  ])();
}

/** @param {{ below: (count: number) => number, pick: <T>(list: T[]) => T }} random @param {number} most lines */
export function code(random, most = 60) {
  const lines = Array.from({ length: 1 + random.below(most) }, () => `${" ".repeat(random.below(9))}${random.pick(CODE)}${random.pick(["", " ", random.pick(CODE)])}`);
  if (random.below(4) === 0) lines.push(random.pick(CODE).repeat(random.below(20 * most)));
  return `${random.pick(["", "", "- "])}\`\`\`${random.pick(LANGUAGES)}\n${lines.join("\n")}\n${random.pick(["```", "```", ""])}`;
}
