/**
 * A formula in TeX's notation as MathML, made of elements: no markup is parsed, and of the elements that MathML has only those
 * that show something are made. A formula that is faulty, or larger than anybody writes, gives null: it is shown as its source.
 *
 * What people and models use of LaTeX and amsmath is here; it defines no macros, loads nothing and sets no colours.
 */
const SOURCE_MAX = 3000;
const NESTING_MAX = 16;
const MATHML = "http://www.w3.org/1998/Math/MathML";

/** Names and characters in turn, as a table. @param {string} text @returns {Map<string, string>} */
function table(text) {
  const words = text.trim().split(/\s+/);
  return new Map(Array.from({ length: words.length / 2 }, (_, index) => [words[2 * index] ?? "", words[2 * index + 1] ?? ""]));
}

const LETTERS = table(`
  alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ
  rho ρ varrho ϱ sigma σ varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω ell ℓ imath ı jmath ȷ wp ℘`);
const UPRIGHT = table(`
  Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω hbar ℏ Re ℜ Im ℑ aleph ℵ infty ∞ emptyset ∅ varnothing ∅ partial ∂ nabla ∇
  top ⊤ bot ⊥ angle ∠ triangle △ square □ blacksquare ■ diamond ⋄ checkmark ✓ degree ° prime ′ forall ∀ exists ∃ nexists ∄ ldots … dots … cdots ⋯ vdots ⋮
  ddots ⋱ dotsc … dotsb ⋯ % % $ $ # # & & _ _ pounds £ S § P ¶ copyright © dagger † ddagger ‡ clubsuit ♣ diamondsuit ♢ heartsuit ♡ spadesuit ♠ flat ♭
  natural ♮ sharp ♯ star ⋆ bigstar ★ surd √ mho ℧ lozenge ◊ therefore ∴ because ∵ complement ∁ eth ð`);
const SIGNS = table(`
  pm ± mp ∓ times × div ÷ cdot ⋅ ast ∗ circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ oslash ⊘ odot ⊙ cap ∩ cup ∪ uplus ⊎ sqcap ⊓ sqcup ⊔ vee ∨ lor ∨ wedge ∧ land ∧
  setminus ∖ smallsetminus ∖ wr ≀ amalg ⨿ neg ¬ lnot ¬ leq ≤ le ≤ geq ≥ ge ≥ leqslant ⩽ geqslant ⩾ lt < gt > neq ≠ ne ≠ equiv ≡ sim ∼ simeq ≃ approx ≈ cong ≅ propto ∝ ll ≪ gg ≫
  prec ≺ succ ≻ preceq ⪯ succeq ⪰ doteq ≐ asymp ≍ in ∈ notin ∉ ni ∋ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ subsetneq ⊊ supsetneq ⊋ nsubseteq ⊈ sqsubseteq ⊑
  sqsupseteq ⊒ mid ∣ nmid ∤ parallel ∥ perp ⟂ vdash ⊢ dashv ⊣ models ⊨ vDash ⊨ to → gets ← rightarrow → leftarrow ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐
  Leftrightarrow ⇔ implies ⟹ impliedby ⟸ iff ⟺ longrightarrow ⟶ longleftarrow ⟵ longleftrightarrow ⟷ Longrightarrow ⟹ Longleftarrow ⟸ Longleftrightarrow ⟺
  mapsto ↦ longmapsto ⟼ hookrightarrow ↪ hookleftarrow ↩ uparrow ↑ downarrow ↓ updownarrow ↕ Uparrow ⇑ Downarrow ⇓ nearrow ↗ searrow ↘ swarrow ↙ nwarrow ↖
  rightleftharpoons ⇌ leftrightharpoons ⇋ rightharpoonup ⇀ rightharpoondown ⇁ leadsto ⇝ rightsquigarrow ⇝ twoheadrightarrow ↠ upharpoonright ↾ colon : coloneqq ≔ triangleq ≜ lesssim ≲
  gtrsim ≳ trianglelefteq ⊴ triangleleft ◁ triangleright ▷ bowtie ⋈ ltimes ⋉ rtimes ⋊ backslash \\ gtreqless ⋛ lessgtr ≶ curlyvee ⋎ curlywedge ⋏ vert | Vert ‖ | ‖
  lbrace { rbrace } { { } } lbrack [ rbrack ] langle ⟨ rangle ⟩ lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ lvert | rvert | lVert ‖ rVert ‖ lgroup ⟮ rgroup ⟯ ulcorner ⌜ urcorner ⌝`);
const LARGE = table("sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigsqcup ⨆ bigvee ⋁ bigwedge ⋀ bigoplus ⨁ bigotimes ⨂ bigodot ⨀ biguplus ⨄ int ∫ iint ∬ iiint ∭ oint ∮ oiint ∯ intop ∫");
const FUNCTIONS = new Set(
  ("arccos arcsin arctan arg cos cosh cot coth csc deg dim exp hom ker lg ln log sec sin sinh tan tanh sgn rank tr Tr diag erf sech csch arccot arcsec arccsc " +
    "lim max min sup inf limsup liminf det gcd lcm Pr argmax argmin").split(" "),
);
const UNDER = new Set("lim max min sup inf limsup liminf det gcd Pr argmax argmin".split(" ")); // with what is below them
const ACCENTS = table("hat ^ widehat ^ bar ¯ overline ‾ tilde ~ widetilde ~ vec → overrightarrow → overleftarrow ← overleftrightarrow ↔ dot ˙ ddot ¨ dddot ⃛ check ˇ breve ˘ acute ´ grave ` mathring ˚ overbrace ⏞");
const BELOW = table("underline ‾ underbrace ⏟ underrightarrow → underleftarrow ←");
const WIDE = /^(wide|over|under)/;
const SPACES = table(", .1667em : .2222em > .2222em ; .2778em ! -.1667em quad 1em qquad 2em enspace .5em thinspace .1667em medspace .2222em thickspace .2778em negthinspace -.1667em");
const ARROWS = table("xrightarrow → xleftarrow ← xleftrightarrow ↔ xRightarrow ⇒ xLeftarrow ⇐ xmapsto ↦ xhookrightarrow ↪ xrightleftharpoons ⇌");
const SIZES = table("big 1.2em Big 1.8em bigg 2.4em Bigg 3em");
const FENCES = { matrix: "", smallmatrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{", dcases: "{", rcases: " }", array: "", subarray: "" };
const ROWS = new Set("align aligned alignat alignedat split gather gathered equation eqnarray multline flalign math displaymath".split(" "));
const FONTS = { mathbf: "bold", boldsymbol: "bold", bm: "bold", bold: "bold", pmb: "bold", mathbb: "double", Bbb: "double", mathcal: "script", mathscr: "script", mathfrak: "fraktur", frak: "fraktur", mathsf: "sans", mathtt: "mono", mathrm: "normal", rm: "normal", mathit: "", mathnormal: "" };
const TEXTS = new Set("text textrm textnormal textit textbf textsf texttt mbox hbox textup emph".split(" "));
const NOTHING = new Set("displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits nonumber notag hline hfill left. right. allowbreak nobreak relax mathstrut strut centering break".split(" "));

/** Where the letters and digits of a font begin (A, a, 0), and the letters that Unicode had before. */
const PLANES = {
  bold: { A: 0x1d400, a: 0x1d41a, 0: 0x1d7ce, old: "" },
  double: { A: 0x1d538, a: 0x1d552, 0: 0x1d7d8, old: "CℂHℍNℕPℙQℚRℝZℤ" },
  script: { A: 0x1d49c, a: 0x1d4b6, 0: 0, old: "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ" },
  fraktur: { A: 0x1d504, a: 0x1d51e, 0: 0, old: "CℭHℌIℑRℜZℨ" },
  sans: { A: 0x1d5a0, a: 0x1d5ba, 0: 0x1d7e2, old: "" },
  mono: { A: 0x1d670, a: 0x1d68a, 0: 0x1d7f6, old: "" },
};

/** @param {string} letter @param {string} font */
function styled(letter, font) {
  const plane = /** @type {Record<string, { A: number, a: number, 0: number, old: string } | undefined>} */ (PLANES)[font];
  if (plane === undefined) return letter;
  const old = plane.old.indexOf(letter);
  const code = letter.charCodeAt(0);
  if (old >= 0 && /[A-Za-z]/.test(letter)) return plane.old[old + 1] ?? letter;
  if (/^[A-Z]$/.test(letter)) return String.fromCodePoint(plane.A + code - 65);
  if (/^[a-z]$/.test(letter)) return String.fromCodePoint(plane.a + code - 97);
  if (/^\d$/.test(letter) && plane[0] > 0) return String.fromCodePoint(plane[0] + code - 48);
  if (font === "bold" && /^[Α-Ω]$/.test(letter)) return String.fromCodePoint(0x1d6a8 + code - 0x391);
  if (font === "bold" && /^[α-ω]$/.test(letter)) return String.fromCodePoint(0x1d6c2 + code - 0x3b1);
  return letter;
}

/** @param {string} tag @param {Record<string, string>} attributes @param {...(Node | string)} children */
function make(tag, attributes, ...children) {
  const element = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** @param {Element[]} parts */
function row(parts) {
  return parts.length === 1 && parts[0] !== undefined ? parts[0] : make("mrow", {}, ...parts);
}

class Faulty extends Error {}

/** One formula, read once from its begin to its end. */
class Reader {
  /** @param {string} source */
  constructor(source) {
    this.source = source;
    this.at = 0;
    this.depth = 0;
    this.font = "";
  }

  /** @param {RegExp} pattern sticky */
  take(pattern) {
    pattern.lastIndex = this.at;
    const match = pattern.exec(this.source);
    if (match !== null) this.at = pattern.lastIndex;
    return match;
  }

  /** The next token, which stays: a command with its backslash, or a character. */
  peek() {
    this.take(/(?:\s|%[^\n]*(?:\n|$))+/y);
    const from = this.at;
    const token = this.take(/\\(?:[A-Za-z]+\*?|[^])|[^]/uy)?.[0] ?? "";
    this.at = from;
    return token;
  }

  next() {
    const token = this.peek();
    this.at += token.length;
    return token;
  }

  /** @param {string} token */
  expect(token) {
    if (this.next() !== token) throw new Faulty(token);
  }

  /** @template T @param {() => T} read what is one level deeper */
  nested(read) {
    if (++this.depth > NESTING_MAX) throw new Faulty("nesting");
    const font = this.font;
    const result = read();
    this.font = font;
    this.depth--;
    return result;
  }

  /** Elements up to one of these tokens, which stays. @param {string[]} ends @returns {Element[]} */
  parts(ends) {
    /** @type {Element[]} */
    const parts = [];
    for (let token = this.peek(); !ends.includes(token); token = this.peek()) {
      if (token === "") throw new Faulty("end");
      if (/^\\(over|choose|atop)$/.test(token)) {
        this.next();
        const below = row(this.nested(() => this.parts(ends)));
        return [fraction(row(parts), below, token === "\\over" ? "" : "0", token === "\\choose" ? "()" : "")];
      }
      const part = this.scripted();
      if (part !== null) parts.push(part);
    }
    return parts;
  }

  /** A group in braces, or one token. @returns {Element} */
  argument() {
    return this.nested(() => {
      const token = this.peek();
      if (/^\d$/.test(token)) return make("mn", {}, styled(this.next(), this.font)); // one, as in \frac12
      if (token !== "{") return this.atom() ?? make("mrow", {});
      this.next();
      const parts = this.parts(["}"]);
      this.next();
      return row(parts);
    });
  }

  /** What stands in braces, as it is. */
  raw() {
    this.expect("{");
    let open = 1;
    for (const match of this.source.slice(this.at).matchAll(/\\[^]|[{}]/gu)) {
      if (match[0] === "{") open++;
      else if (match[0] === "}" && --open === 0) {
        const from = this.at;
        this.at += match.index + 1;
        return this.source.slice(from, this.at - 1);
      }
    }
    throw new Faulty("{");
  }

  /** An atom with what is above and below it. @returns {Element | null} */
  scripted() {
    const before = this.peek();
    const base = /^[_^']$/.test(before) ? make("mrow", {}) : this.atom();
    if (base === null) return null;
    const name = before.slice(1);
    let limits = (LARGE.has(name) && !/int/.test(name)) || UNDER.has(name) || /^\\(under|over)brace$|^\\operatorname\*$/.test(before);
    /** @type {Element | null} */
    let below = null;
    /** @type {Element | null} */
    let above = null;
    for (;;) {
      const token = this.peek();
      if (token === "\\limits" || token === "\\nolimits") {
        this.next();
        limits = token === "\\limits";
        if (limits) base.setAttribute("movablelimits", "false");
      } else if (token === "_" && below === null) {
        this.next();
        below = this.argument();
      } else if (token === "^" && above === null) {
        this.next();
        above = this.argument();
      } else if (token === "'" && above === null) {
        const primes = this.take(/'+/y)?.[0].length ?? 1;
        above = make("mo", {}, "′".repeat(primes));
        if (this.peek() === "^") {
          this.next();
          above = make("mrow", {}, above, this.argument());
        }
      } else if (/^[_^']$/.test(token)) throw new Faulty("twice");
      else break;
    }
    if (below !== null && above !== null) return make(limits ? "munderover" : "msubsup", {}, base, below, above);
    if (below !== null) return make(limits ? "munder" : "msub", {}, base, below);
    return above === null ? base : make(limits ? "mover" : "msup", {}, base, above);
  }

  /** @returns {Element | null} null for what shows nothing */
  atom() {
    const number = this.font === "" || this.font === "normal" ? (this.peek(), this.take(/\d+(?:\.\d+)?|\.\d+/y)) : null;
    if (number !== null) return make("mn", {}, number[0]);
    const token = this.next();
    if (token === "{") {
      this.at--;
      return this.argument();
    }
    if (token.startsWith("\\")) return this.command(token.slice(1));
    if (/^\d$/.test(token)) return make("mn", {}, styled(token, this.font));
    if (/^[\p{L}]$/u.test(token)) return this.letter(token);
    if (token === "~") return make("mspace", { width: ".3333em" });
    if (/^[\])|[(/]$/.test(token)) return make("mo", { stretchy: "false" }, token);
    if (/^[-+*=<>,;:!?.@"`]$|^[^\x00-\x7f]$/u.test(token)) return make("mo", {}, { "-": "−", "*": "∗" }[token] ?? token);
    throw new Faulty(token);
  }

  /** @param {string} letter */
  letter(letter) {
    if (this.font !== "normal") return make("mi", {}, styled(letter, this.font));
    return make("mi", { mathvariant: "normal" }, letter + (this.take(/[A-Za-z]+/y)?.[0] ?? "")); // a word, as in \mathrm{const}
  }

  /** @param {string} name @returns {Element | null} */
  command(name) {
    const letter = LETTERS.get(name);
    if (letter !== undefined) return make("mi", {}, styled(letter, this.font));
    const upright = UPRIGHT.get(name);
    if (upright !== undefined) return make("mi", { mathvariant: "normal" }, styled(upright, this.font));
    const sign = SIGNS.get(name);
    if (sign !== undefined) return make("mo", /^[[\]{}|‖⟨⟩⌈⌉⌊⌋]$/.test(sign) ? { stretchy: "false" } : {}, sign);
    const large = LARGE.get(name);
    if (large !== undefined) return make("mo", {}, large);
    if (FUNCTIONS.has(name)) return this.operator(name.replace(/^(lim|arg)(sup|inf|max|min)$/, "$1 $2"));
    const space = SPACES.get(name);
    if (space !== undefined) return make("mspace", { width: space });
    if (/^\s$/.test(name)) return make("mspace", { width: ".3333em" });
    if (NOTHING.has(name)) return null;
    return this.structure(name);
  }

  /** @param {string} name a function's, set apart from what it is of */
  operator(name) {
    const tight = /^(?:[([}^_,)]|\\left|$)/.test(this.source.slice(this.at).trimStart());
    return make("mo", { form: "prefix", stretchy: "false", lspace: ".1em", rspace: tight ? "0" : ".1667em", movablelimits: "true" }, name);
  }

  /** Commands with arguments. @param {string} name @returns {Element | null} */
  structure(name) {
    const font = /** @type {Record<string, string | undefined>} */ (FONTS)[name];
    if (font !== undefined) {
      return this.nested(() => {
        this.font = font;
        return this.argument();
      });
    }
    if (TEXTS.has(name)) return make("mtext", {}, plain(this.raw()));
    const accent = ACCENTS.get(name);
    const stretchy = String(WIDE.test(name));
    if (accent !== undefined) return make("mover", { accent: "true" }, this.argument(), make("mo", { stretchy }, accent));
    const under = BELOW.get(name);
    if (under !== undefined) return make("munder", { accentunder: "true" }, this.argument(), make("mo", { stretchy }, under));
    const arrow = ARROWS.get(name);
    if (arrow !== undefined) return this.arrow(arrow);
    const size = SIZES.get(name.replace(/[lrm]$/, ""));
    if (size !== undefined) return make("mo", { stretchy: "true", minsize: size, maxsize: size }, this.delimiter());
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": case "binom": case "dbinom": case "tbinom": {
        const above = this.argument();
        const below = this.argument();
        const whole = fraction(above, below, name.endsWith("binom") ? "0" : "", name.endsWith("binom") ? "()" : "");
        return /^[dct]/.test(name) ? make("mstyle", { displaystyle: String(name[0] !== "t") }, whole) : whole;
      }
      case "sqrt": return this.root();
      case "left": return this.fenced();
      case "begin": return this.environment(this.raw().replace(/\*$/, ""));
      case "overset": case "stackrel": {
        const above = this.argument();
        return make("mover", {}, this.argument(), above);
      }
      case "underset": {
        const below = this.argument();
        return make("munder", {}, this.argument(), below);
      }
      case "operatorname": case "operatorname*": return this.operator(plain(this.raw()));
      case "substack": return this.lines(["}"], "", () => this.expect("{"));
      case "boxed": case "fbox": return make("mrow", { class: "boxed" }, this.argument());
      case "phantom": case "hphantom": case "vphantom": return make("mphantom", {}, this.argument());
      case "not": return make("mo", {}, `${this.argument().textContent ?? ""}\u0338`);
      case "bmod": return this.operator("mod");
      case "mod": return this.operator("mod");
      case "pmod": return make("mrow", {}, make("mspace", { width: ".5em" }), make("mo", { stretchy: "false" }, "("), this.operator("mod"), make("mspace", { width: ".1667em" }), this.argument(), make("mo", { stretchy: "false" }, ")"));
      case "tag": case "tag*": return make("mtext", { class: "tag" }, `(${plain(this.raw())})`);
      case "label": case "color": case "hspace": case "vspace": case "mathstrut*": this.raw(); return null;
      case "textcolor": this.raw(); return this.argument();
      case "mathop": case "mathrel": case "mathbin": case "mathord": case "mathopen": case "mathclose": case "mathinner": case "cancel": case "ensuremath": case "smash": return this.argument();
      default: throw new Faulty(name);
    }
  }

  root() {
    if (this.peek() !== "[") return make("msqrt", {}, this.argument());
    this.next();
    const degree = row(this.nested(() => this.parts(["]"])));
    this.next();
    return make("mroot", {}, this.argument(), degree);
  }

  /** @param {string} sign */
  arrow(sign) {
    let below = null;
    if (this.peek() === "[") {
      this.next();
      below = row(this.nested(() => this.parts(["]"])));
      this.next();
    }
    const above = this.argument();
    const body = make("mo", { stretchy: "true", minsize: "1.8em" }, sign);
    return below === null ? make("mover", {}, body, above) : make("munderover", {}, body, below, above);
  }

  /** What may stand behind \left, \right, \middle and \big. */
  delimiter() {
    const token = this.next();
    if (token === ".") return "";
    const sign = token.startsWith("\\") ? SIGNS.get(token.slice(1)) : token === "<" ? "⟨" : token === ">" ? "⟩" : token;
    if (sign === undefined || !/^[()[\]{}|‖/\\⟨⟩⌈⌉⌊⌋⟮⟯⌜⌝↑↓↕⇑⇓]$/.test(sign)) throw new Faulty(token);
    return sign;
  }

  fenced() {
    return this.nested(() => {
      /** @type {Element[]} */
      const parts = [fence(this.delimiter(), "prefix")];
      for (;;) {
        parts.push(...this.parts(["\\middle", "\\right"]));
        const isLast = this.next() === "\\right";
        parts.push(fence(this.delimiter(), isLast ? "postfix" : "infix"));
        if (isLast) return make("mrow", {}, ...parts);
      }
    });
  }

  /** @param {string} name */
  environment(name) {
    const fences = /** @type {Record<string, string | undefined>} */ (FENCES)[name];
    if (fences === undefined && !ROWS.has(name)) throw new Faulty(name);
    const columns = /^(sub)?array$|^align(ed)?at$/.test(name) ? this.raw().replace(/[^lcr]/g, "") : "";
    const align = ROWS.has(name) ? "rl" : name.endsWith("cases") ? "ll" : columns;
    const body = this.lines(["\\end"], align, () => this.take(/\s*\[[tbc]\]/y));
    if (this.raw().replace(/\*$/, "") !== name) throw new Faulty(name);
    body.setAttribute("class", ROWS.has(name) ? "rows" : name.endsWith("cases") ? "cases" : "matrix");
    if (ROWS.has(name)) body.setAttribute("displaystyle", "true");
    if (!fences) return body;
    const [open, close] = [fences[0]?.trim() ?? "", fences[1] ?? ""];
    return make("mrow", {}, fence(open, "prefix"), body, fence(close, "postfix"));
  }

  /** Rows of cells. @param {string[]} ends the token that ends them, which goes @param {string} align of the columns, again and again @param {() => void} begin */
  lines(ends, align, begin) {
    return this.nested(() => {
      begin();
      const body = make("mtable", {});
      for (let line = make("mtr", {}); ; ) {
        const cell = make("mtd", {}, row(this.parts(["&", "\\\\", "\\cr", ...ends])));
        const side = align[line.childElementCount % Math.max(align.length, 1)];
        if (side === "l" || side === "r") cell.setAttribute("class", side === "l" ? "left" : "right");
        line.append(cell);
        const token = this.next();
        if (token === "&") continue;
        if (line.textContent !== "" || token.startsWith("\\\\") || token === "\\cr") body.append(line);
        if (ends.includes(token)) return body;
        this.take(/\s*\[-?[\d.]+[a-z]+\]/y); // space between the rows
        line = make("mtr", {});
      }
    });
  }
}

/** @param {Element} above @param {Element} below @param {string} line @param {string} fences */
function fraction(above, below, line, fences) {
  const whole = make("mfrac", line === "" ? {} : { linethickness: line }, above, below);
  return fences === "" ? whole : make("mrow", {}, fence("(", "prefix"), whole, fence(")", "postfix"));
}

/** @param {string} sign @param {string} form */
function fence(sign, form) {
  return make("mo", { form, fence: "true", stretchy: "true" }, sign);
}

/** Text inside a formula. @param {string} source */
function plain(source) {
  return source.replace(/\$|\\[,;:! ]/g, " ").replace(/\\([{}%$#&_])/g, "$1").replace(/\\[A-Za-z]+\s*|[{}]/g, "").replace(/~/g, " ").replace(/^ | $/g, "\u00a0");
}

/** @param {string} source without its delimiters @param {boolean} display a line of its own @returns {Element | null} */
export function maths(source, display) {
  if (source.length > SOURCE_MAX) return null;
  const reader = new Reader(source);
  try {
    const parts = reader.parts(["", "\\\\"]);
    const body = reader.peek() === "" ? row(parts) : new Reader(source).lines([""], "rl", () => {}); // lines without an environment
    return make("math", display ? { display: "block" } : {}, body);
  } catch (error) {
    if (error instanceof Faulty) return null;
    throw error;
  }
}
