/**
 * A real OpenID provider (oidc-provider, certified) for one test: `node provider.mjs '{"page": "http://127.0.0.1:8080"}'`.
 * It prints its issuer, lets in anybody by the name they give, and serves until it is ended. `ana` and all else are users of the
 * tenant `acme`; `boss` is in a list of operators too.
 */
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(new URL("../../../clients/typescript/package.json", import.meta.url));
console.warn = () => {};
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")).href);
const { page, secret = "s3cret", ttl = 3600 } = JSON.parse(process.argv[2]);

let handler;
const server = createServer((request, response) => handler(request, response));
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "sessile",
        client_secret: secret,
        redirect_uris: [`${page}/auth/callback`],
        post_logout_redirect_uris: [`${page}/`],
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
        backchannel_logout_uri: `${page}/auth/backchannel-logout`,
      },
    ],
    features: { backchannelLogout: { enabled: true } },
    fetch: (url, { dispatcher, ...options }) => fetch(url, options), // its own refuses addresses of this machine
    claims: { openid: ["sub", "org", "groups"] },
    conformIdTokenClaims: false,
    scopes: ["openid", "offline_access"],
    pkce: { required: () => true },
    cookies: { keys: ["only-for-a-test"] },
    ttl: { AccessToken: ttl, IdToken: ttl, AuthorizationCode: 60, RefreshToken: 86_400, Grant: 86_400, Session: 86_400, Interaction: 600 },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, org: "acme", groups: id === "boss" ? ["staff", "operator"] : ["staff"] }),
    }),
  });
  handler = provider.callback();
  console.log(issuer);
});
